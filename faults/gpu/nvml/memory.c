/* How much of a card's memory is taken. */
#include "node.h"
#include "put.h"

API Return nvmlDeviceGetMemoryInfo(Device device, Memory *memory) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (memory == NULL) return INVALID_ARGUMENT;
    *memory = (Memory){held.total, held.total - held.used, held.used};
    return SUCCESS;
}

API Return nvmlDeviceGetMemoryInfo_v2(Device device, MemoryV2 *memory) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (memory == NULL) return INVALID_ARGUMENT;
    if (memory->version != VERSION(MemoryV2, 2)) return VERSION_MISMATCH;
    *memory = (MemoryV2){memory->version, held.total, 0, held.total - held.used, held.used};
    return SUCCESS;
}

API Return nvmlDeviceGetBAR1MemoryInfo(Device device, Memory *memory) {
    ENTER_CARD(device, card);
    if (memory == NULL) return INVALID_ARGUMENT;
    Big window = 1; /* a power of two that shows all of the memory; nothing is mapped through it */
    while (window < (Big)card.head.profile->memory_bytes) window *= 2;
    *memory = (Memory){window, window, 0};
    return SUCCESS;
}
