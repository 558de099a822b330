/* Clocks, why they are low, and how busy a card is. */
#include "node.h"
#include "put.h"

enum { CLOCK_GRAPHICS = 0, CLOCK_SM = 1, CLOCK_MEMORY = 2, CLOCK_VIDEO = 3 };
enum { ID_CURRENT = 0, ID_TARGET = 1, ID_DEFAULT = 2, ID_MAX = 3 };
enum { POLICY_POWER = 0, POLICY_THERMAL = 1, POLICY_LAST = 11 };

static Return clock_of(Device device, unsigned kind, bool max, unsigned *mhz) {
    ENTER_CARD(device, card);
    if (kind > CLOCK_VIDEO) return INVALID_ARGUMENT;
    if (kind == CLOCK_VIDEO) return NOT_SUPPORTED; /* no video engine is modelled */
    if (kind == CLOCK_MEMORY) return put_number(mhz, max ? GET(&card, mem_clock_max_mhz) : GET(&card, mem_clock_mhz));
    return put_number(mhz, max ? GET(&card, sm_clock_max_mhz) : GET(&card, sm_clock_mhz));
}

API Return nvmlDeviceGetClockInfo(Device device, unsigned kind, unsigned *mhz) {
    return clock_of(device, kind, false, mhz);
}

API Return nvmlDeviceGetMaxClockInfo(Device device, unsigned kind, unsigned *mhz) {
    return clock_of(device, kind, true, mhz);
}

API Return nvmlDeviceGetMaxCustomerBoostClock(Device device, unsigned kind, unsigned *mhz) {
    return clock_of(device, kind, true, mhz);
}

API Return nvmlDeviceGetClock(Device device, unsigned kind, unsigned id, unsigned *mhz) {
    if (id > ID_MAX) return INVALID_ARGUMENT;
    return clock_of(device, kind, id != ID_CURRENT, mhz);
}

API Return nvmlDeviceGetApplicationsClock(Device device, unsigned kind, unsigned *mhz) {
    return clock_of(device, kind, true, mhz);
}

API Return nvmlDeviceGetDefaultApplicationsClock(Device device, unsigned kind, unsigned *mhz) {
    return clock_of(device, kind, true, mhz);
}

API Return nvmlDeviceGetSupportedMemoryClocks(Device device, unsigned *count, unsigned *mhz) {
    ENTER_CARD(device, card);
    if (count == NULL) return INVALID_ARGUMENT;
    unsigned room = *count;
    *count = 1;
    return room < 1 || mhz == NULL ? INSUFFICIENT_SIZE : put_number(mhz, GET(&card, mem_clock_max_mhz));
}

API Return nvmlDeviceGetCurrentClocksEventReasons(Device device, Big *reasons) {
    ENTER_CARD(device, card);
    return put_big(reasons, GET(&card, throttle));
}

API Return nvmlDeviceGetCurrentClocksThrottleReasons(Device device, Big *reasons) {
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

API Return nvmlDeviceGetSupportedClocksEventReasons(Device device, Big *reasons) {
    ENTER_CARD(device, card);
    return put_big(reasons, THROTTLE_ALL);
}

API Return nvmlDeviceGetSupportedClocksThrottleReasons(Device device, Big *reasons) {
    return nvmlDeviceGetSupportedClocksEventReasons(device, reasons);
}

API Return nvmlDeviceGetViolationStatus(Device device, unsigned policy, ViolationTime *status) {
    ENTER_CARD(device, card);
    if (status == NULL || policy > POLICY_LAST) return INVALID_ARGUMENT;
    double seconds;
    if (policy == POLICY_POWER)
        seconds = GET(&card, throttled_power_s);
    else if (policy == POLICY_THERMAL)
        seconds = GET(&card, throttled_thermal_s);
    else
        return NOT_SUPPORTED;
    status->reference = now_us();
    return put_big(&status->violation, 1e9 * seconds);
}

API Return nvmlDeviceGetUtilizationRates(Device device, Utilization *utilization) {
    ENTER_CARD(device, card);
    if (utilization == NULL) return INVALID_ARGUMENT;
    put_number(&utilization->gpu, rate(&card, GET(&card, gpu_util_percent)));
    put_number(&utilization->memory, rate(&card, GET(&card, mem_util_percent)));
    return SUCCESS;
}
