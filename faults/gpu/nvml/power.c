/* Power and heat. */
#include "node.h"
#include "put.h"

enum { THRESHOLD_SHUTDOWN = 0, THRESHOLD_SLOWDOWN = 1, THRESHOLD_LAST = 7 };

/* In mW. */
#define WATTS(name, figure)                                   \
    API Return name(Device device, unsigned *milliwatts) {    \
        ENTER_CARD(device, card);                             \
        return put_number(milliwatts, 1e3 * GET(&card, figure)); \
    }

WATTS(nvmlDeviceGetPowerUsage, power_w)
WATTS(nvmlDeviceGetPowerManagementLimit, power_limit_w)
WATTS(nvmlDeviceGetEnforcedPowerLimit, power_limit_w)
WATTS(nvmlDeviceGetPowerManagementDefaultLimit, power_default_w)

API Return nvmlDeviceGetPowerManagementLimitConstraints(Device device, unsigned *least, unsigned *most) {
    ENTER_CARD(device, card);
    if (least == NULL || most == NULL) return INVALID_ARGUMENT;
    put_number(least, 1e3 * GET(&card, power_min_w));
    return put_number(most, 1e3 * GET(&card, power_default_w));
}

API Return nvmlDeviceGetTotalEnergyConsumption(Device device, Big *millijoules) {
    ENTER_CARD(device, card);
    return put_big(millijoules, 1e3 * GET(&card, energy_j));
}

API Return nvmlDeviceGetTemperature(Device device, unsigned sensor, unsigned *celsius) {
    ENTER_CARD(device, card);
    return sensor == 0 ? put_number(celsius, GET(&card, temperature_c)) : INVALID_ARGUMENT;
}

API Return nvmlDeviceGetTemperatureV(Device device, Temperature *temperature) {
    ENTER_CARD(device, card);
    if (temperature == NULL) return INVALID_ARGUMENT;
    if (temperature->version != VERSION(Temperature, 1)) return VERSION_MISMATCH;
    if (temperature->sensor != 0) return INVALID_ARGUMENT;
    temperature->celsius = (int)(GET(&card, temperature_c) + 0.5);
    return SUCCESS;
}

API Return nvmlDeviceGetTemperatureThreshold(Device device, unsigned threshold, unsigned *celsius) {
    ENTER_CARD(device, card);
    if (threshold > THRESHOLD_LAST) return INVALID_ARGUMENT;
    if (threshold > THRESHOLD_SLOWDOWN) return NOT_SUPPORTED;
    return put_number(celsius,
                      threshold == THRESHOLD_SHUTDOWN ? GET(&card, shutdown_c) : GET(&card, slowdown_c));
}

API Return nvmlDeviceGetMarginTemperature(Device device, MarginTemperature *margin) {
    ENTER_CARD(device, card);
    if (margin == NULL) return INVALID_ARGUMENT;
    if (margin->version != VERSION(MarginTemperature, 1)) return VERSION_MISMATCH;
    margin->celsius = (int)(GET(&card, slowdown_c) - GET(&card, temperature_c));
    return SUCCESS;
}
