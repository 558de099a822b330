/* Modes a card can be in, of which these cards know one each. */
#include "node.h"
#include "put.h"

#define ALWAYS(name, value)                            \
    API Return name(Device device, unsigned *mode) {   \
        ENTER_CARD(device, card);                      \
        return put_number(mode, value);                \
    }

ALWAYS(nvmlDeviceGetPersistenceMode, 1)
ALWAYS(nvmlDeviceGetDisplayActive, 0)
ALWAYS(nvmlDeviceGetDisplayMode, 0)
ALWAYS(nvmlDeviceGetComputeMode, 0)      /* any number of processes */
ALWAYS(nvmlDeviceGetPerformanceState, 0) /* P0 */
ALWAYS(nvmlDeviceGetPowerState, 0)
ALWAYS(nvmlDeviceGetPowerManagementMode, 1)
ALWAYS(nvmlDeviceGetMultiGpuBoard, 0)
ALWAYS(nvmlDeviceGetVirtualizationMode, 0)
ALWAYS(nvmlDeviceIsMigDeviceHandle, 0)
ALWAYS(nvmlDeviceGetMaxMigDeviceCount, 0)
ALWAYS(nvmlDeviceGetBusType, 2)     /* PCIe */
ALWAYS(nvmlDeviceGetPowerSource, 0) /* mains */
ALWAYS(nvmlDeviceGetNumFans, 0)

#define BOTH(name, value)                                             \
    API Return name(Device device, unsigned *now, unsigned *next) {   \
        ENTER_CARD(device, card);                                     \
        if (now == NULL || next == NULL) return INVALID_ARGUMENT;     \
        *now = *next = value;                                         \
        return SUCCESS;                                               \
    }

BOTH(nvmlDeviceGetMigMode, 0)
BOTH(nvmlDeviceGetEccMode, 1)

API Return nvmlDeviceGetDefaultEccMode(Device device, unsigned *mode) {
    ENTER_CARD(device, card);
    return put_number(mode, 1);
}

/* Video engines: there are none at work. */
API Return nvmlDeviceGetEncoderUtilization(Device device, unsigned *percent, unsigned *period_us) {
    ENTER_CARD(device, card);
    if (percent == NULL || period_us == NULL) return INVALID_ARGUMENT;
    *percent = 0;
    *period_us = 100000;
    return SUCCESS;
}

#define VIDEO(name)                                                            \
    API Return name(Device device, unsigned *percent, unsigned *period_us) {   \
        return nvmlDeviceGetEncoderUtilization(device, percent, period_us);    \
    }

VIDEO(nvmlDeviceGetDecoderUtilization)
VIDEO(nvmlDeviceGetJpgUtilization)
VIDEO(nvmlDeviceGetOfaUtilization)
