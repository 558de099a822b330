/* A card's PCIe link. */
#include "node.h"
#include "put.h"

enum { COUNTER_TX = 0, COUNTER_RX = 1 };

/* In KiB/s, as clients take it. Unlike a real card's it does not block: the rate of the latest window is known. */
API Return nvmlDeviceGetPcieThroughput(Device device, unsigned counter, unsigned *kib_per_s) {
    ENTER_CARD(device, card);
    if (counter > COUNTER_RX) return INVALID_ARGUMENT;
    double bytes = counter == COUNTER_TX ? GET(&card, pcie_tx_bytes_per_s) : GET(&card, pcie_rx_bytes_per_s);
    return put_number(kib_per_s, rate(&card, bytes) / 1024);
}

#define FIGURE(name, figure)                           \
    API Return name(Device device, unsigned *value) {  \
        ENTER_CARD(device, card);                      \
        return put_number(value, GET(&card, figure));  \
    }

FIGURE(nvmlDeviceGetPcieReplayCounter, pcie_replays)
FIGURE(nvmlDeviceGetCurrPcieLinkGeneration, pcie_gen)
FIGURE(nvmlDeviceGetMaxPcieLinkGeneration, pcie_gen_max)
FIGURE(nvmlDeviceGetGpuMaxPcieLinkGeneration, pcie_gen_max)
FIGURE(nvmlDeviceGetCurrPcieLinkWidth, pcie_width)
FIGURE(nvmlDeviceGetMaxPcieLinkWidth, pcie_width_max)
FIGURE(nvmlDeviceGetPcieLinkMaxSpeed, pcie_gen_max) /* the codes of speeds are the generations */

/* Of one lane, in MT/s. */
API Return nvmlDeviceGetPcieSpeed(Device device, unsigned *speed) {
    static const unsigned SPEEDS[] = {0, 2500, 5000, 8000, 16000, 32000, 64000};
    ENTER_CARD(device, card);
    unsigned generation = (unsigned)GET(&card, pcie_gen);
    return put_number(speed, generation < sizeof SPEEDS / sizeof *SPEEDS ? SPEEDS[generation] : 0);
}
