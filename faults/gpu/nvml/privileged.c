/* What only an administrator may do. Here nobody may: conditions of the node are kept by whoever injects them. */
#include "node.h"

#define FORBIDDEN(name)         \
    API Return name(void) {     \
        ENTER(head);            \
        return NO_PERMISSION;   \
    }

FORBIDDEN(nvmlDeviceClearAccountingPids)
FORBIDDEN(nvmlDeviceClearEccErrorCounts)
FORBIDDEN(nvmlDeviceModifyDrainState)
FORBIDDEN(nvmlDeviceRemoveGpu)
FORBIDDEN(nvmlDeviceRemoveGpu_v2)
FORBIDDEN(nvmlDeviceResetApplicationsClocks)
FORBIDDEN(nvmlDeviceResetGpuLockedClocks)
FORBIDDEN(nvmlDeviceResetMemoryLockedClocks)
FORBIDDEN(nvmlDeviceResetNvLinkErrorCounters)
FORBIDDEN(nvmlDeviceResetNvLinkUtilizationCounter)
FORBIDDEN(nvmlDeviceSetAPIRestriction)
FORBIDDEN(nvmlDeviceSetAccountingMode)
FORBIDDEN(nvmlDeviceSetApplicationsClocks)
FORBIDDEN(nvmlDeviceSetComputeMode)
FORBIDDEN(nvmlDeviceSetEccMode)
FORBIDDEN(nvmlDeviceSetGpuLockedClocks)
FORBIDDEN(nvmlDeviceSetMemoryLockedClocks)
FORBIDDEN(nvmlDeviceSetMigMode)
FORBIDDEN(nvmlDeviceSetNvlinkBwMode)
FORBIDDEN(nvmlDeviceSetPersistenceMode)
FORBIDDEN(nvmlDeviceSetPowerManagementLimit)
FORBIDDEN(nvmlDeviceSetPowerManagementLimit_v2)
FORBIDDEN(nvmlDeviceSetTemperatureThreshold)
FORBIDDEN(nvmlSystemSetNvlinkBwMode)
