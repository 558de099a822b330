/* Which cards there are, and what they are called. */
#include <stdlib.h>
#include <strings.h>

#include "node.h"
#include "pci.h"
#include "put.h"

#define BRAND_NVIDIA 14
#define UUID_SIZE 41

/* Of the node's number and the card's: the same as in faults/gpu/identity.py. */
static Big mixed(Big seed) {
    seed += 0x9E3779B97F4A7C15ULL;
    seed = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    seed = (seed ^ (seed >> 27)) * 0x94D049BB133111EBULL;
    return seed ^ (seed >> 31);
}

static void uuid_of(const Head *head, int card, char to[UUID_SIZE]) {
    Big high = mixed((Big)head->cells[AT_NODE_ID] + (Big)card), low = mixed(high);
    snprintf(to, UUID_SIZE, "GPU-%08llx-%04llx-%04llx-%04llx-%012llx", high >> 32, (high >> 16) & 0xFFFF,
             high & 0xFFFF, low >> 48, low & 0xFFFFFFFFFFFFULL);
}

void put_bus_id(int bus, unsigned device_id, PciInfo *to) {
    memset(to, 0, sizeof *to);
    to->bus = (unsigned)bus;
    to->device_id = device_id;
    to->subsystem_id = device_id;
    snprintf(to->bus_id, sizeof to->bus_id, "00000000:%02X:00.0", (unsigned)bus & 0xFF);
    snprintf(to->bus_id_legacy, sizeof to->bus_id_legacy, "0000:%02X:00.0", (unsigned)bus & 0xFF);
}

void card_pci(const Head *head, int card, PciInfo *to) {
    put_bus_id(card_bus(card), head->profile->pci_device_id, to);
}

API Return nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER(head);
    if (count == NULL) return INVALID_ARGUMENT;
    *count = (unsigned)head.cards; /* a lost card counts: its handle is what can't be had */
    return SUCCESS;
}

API Return nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

static Return handle_of(int number, Device *device) {
    Card card;
    Return result = read_card(number, &card);
    if (result != SUCCESS) return result;
    if (FLAG(&card, lost)) return GPU_IS_LOST;
    *device = &devices[number];
    return SUCCESS;
}

API Return nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *device) {
    ENTER(head);
    if (device == NULL || index >= (unsigned)head.cards) return INVALID_ARGUMENT;
    return handle_of((int)index, device);
}

API Return nvmlDeviceGetHandleByIndex(unsigned index, Device *device) {
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

API Return nvmlDeviceGetHandleByUUID(const char *uuid, Device *device) {
    ENTER(head);
    if (uuid == NULL || device == NULL) return INVALID_ARGUMENT;
    for (int card = 0; card < head.cards; card++) {
        char each[UUID_SIZE];
        uuid_of(&head, card, each);
        if (strcmp(each, uuid) == 0) return handle_of(card, device);
    }
    return NOT_FOUND;
}

API Return nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device *device) {
    ENTER(head);
    if (bus_id == NULL || device == NULL) return INVALID_ARGUMENT;
    for (int card = 0; card < head.cards; card++) {
        PciInfo info;
        card_pci(&head, card, &info);
        /* Domains are written with four digits or eight, in either case. */
        if (strcasecmp(info.bus_id, bus_id) == 0 || strcasecmp(info.bus_id_legacy, bus_id) == 0)
            return handle_of(card, device);
    }
    return NOT_FOUND;
}

API Return nvmlDeviceGetHandleByPciBusId(const char *bus_id, Device *device) {
    return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

static Return serial_of(const Head *head, int card, char *to, unsigned size) {
    char text[24];
    snprintf(text, sizeof text, "16%010llu%02d", (Big)head->cells[AT_NODE_ID] % 10000000000ULL, card);
    return put_text(to, size, text);
}

API Return nvmlDeviceGetHandleBySerial(const char *serial, Device *device) {
    ENTER(head);
    if (serial == NULL || device == NULL) return INVALID_ARGUMENT;
    for (int card = 0; card < head.cards; card++) {
        char each[24];
        serial_of(&head, card, each, sizeof each);
        if (strcmp(each, serial) == 0) return handle_of(card, device);
    }
    return NOT_FOUND;
}

API Return nvmlDeviceGetIndex(Device device, unsigned *index) {
    ENTER_CARD(device, card);
    return put_number(index, card.card);
}

API Return nvmlDeviceGetMinorNumber(Device device, unsigned *minor) { return nvmlDeviceGetIndex(device, minor); }
API Return nvmlDeviceGetModuleId(Device device, unsigned *module) { return nvmlDeviceGetIndex(device, module); }

API Return nvmlDeviceGetName(Device device, char *name, unsigned size) {
    ENTER_CARD(device, card);
    char text[NAME_CELLS * CELL + 1] = "";
    memcpy(text, head_text(&card.head, AT_PRODUCT), NAME_CELLS * CELL);
    return put_text(name, size, text);
}

API Return nvmlDeviceGetUUID(Device device, char *uuid, unsigned size) {
    ENTER_CARD(device, card);
    char text[UUID_SIZE];
    uuid_of(&card.head, card.card, text);
    return put_text(uuid, size, text);
}

API Return nvmlDeviceGetSerial(Device device, char *serial, unsigned size) {
    ENTER_CARD(device, card);
    return serial_of(&card.head, card.card, serial, size);
}

API Return nvmlDeviceGetBoardId(Device device, unsigned *board) {
    ENTER_CARD(device, card);
    return put_number(board, card_bus(card.card) << 8);
}

API Return nvmlDeviceGetPciInfo_v3(Device device, PciInfo *info) {
    ENTER_CARD(device, card);
    if (info == NULL) return INVALID_ARGUMENT;
    card_pci(&card.head, card.card, info);
    return SUCCESS;
}

API Return nvmlDeviceGetPciInfo_v2(Device device, PciInfoV2 *info) {
    PciInfo whole;
    Return result = nvmlDeviceGetPciInfo_v3(device, &whole);
    if (result != SUCCESS) return result;
    if (info == NULL) return INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    memcpy(info->bus_id, whole.bus_id_legacy, sizeof info->bus_id);
    info->bus = whole.bus;
    info->device_id = whole.device_id;
    info->subsystem_id = whole.subsystem_id;
    return SUCCESS;
}

API Return nvmlDeviceGetPciInfo(Device device, PciInfoV2 *info) { return nvmlDeviceGetPciInfo_v2(device, info); }

API Return nvmlDeviceGetPciInfoExt(Device device, PciInfoExt *info) {
    PciInfo whole;
    Return result = nvmlDeviceGetPciInfo_v3(device, &whole);
    if (result != SUCCESS) return result;
    if (info == NULL) return INVALID_ARGUMENT;
    if (info->version != VERSION(PciInfoExt, 1)) return VERSION_MISMATCH;
    info->domain = info->device = 0;
    info->bus = whole.bus;
    info->device_id = whole.device_id;
    info->subsystem_id = whole.subsystem_id;
    info->base_class = 3; /* display, of the sort without a display */
    info->sub_class = 2;
    memcpy(info->bus_id, whole.bus_id, sizeof info->bus_id);
    return SUCCESS;
}

API Return nvmlDeviceGetCudaComputeCapability(Device device, int *major, int *minor) {
    ENTER_CARD(device, card);
    if (major == NULL || minor == NULL) return INVALID_ARGUMENT;
    *major = (int)GET(&card, compute_major);
    *minor = (int)GET(&card, compute_minor);
    return SUCCESS;
}

API Return nvmlDeviceGetArchitecture(Device device, unsigned *architecture) {
    int major, minor;
    Return result = nvmlDeviceGetCudaComputeCapability(device, &major, &minor);
    if (result != SUCCESS) return result;
    if (architecture == NULL) return INVALID_ARGUMENT;
    int known = major >= 10 ? 10 : major == 9 ? 9 : major == 8 ? (minor == 9 ? 8 : 7) : -1;
    *architecture = (unsigned)known;
    return SUCCESS;
}

API Return nvmlDeviceGetBrand(Device device, unsigned *brand) {
    ENTER_CARD(device, card);
    return put_number(brand, BRAND_NVIDIA);
}
