/* NVLinks: which are up, where they lead, and what went wrong on them. */
#include "nvlink.h"

#include "pci.h"

#define SWITCH_DEVICE_ID 0x22A310DEu
enum { REMOTE_GPU = 0, REMOTE_SWITCH = 2 };
enum { P2P_READ = 0, P2P_WRITE = 1, P2P_NVLINK = 2, P2P_ATOMICS = 3, P2P_PCI = 4, P2P_OK = 0, P2P_NONE = 5 };
enum { LEVEL_SAME = 0, LEVEL_NODE = 40 };
enum { FABRIC_COMPLETED = 3 };

unsigned link_version(const Card *card) { return GET(card, compute_major) >= 9.0 ? 6 : 4; /* 4.0, else 3.0 */ }

double all_link_errors(const Card *card, unsigned kind) {
    switch (kind) {
    case ERROR_REPLAY: return GET(card, nvlink_replays);
    case ERROR_RECOVERY: return GET(card, nvlink_recoveries);
    case ERROR_CRC_FLIT: return GET(card, nvlink_crc_errors);
    default: return 0.0;
    }
}

/* Errors are known of a card, not of a link: they are dealt out in turn, so that links add up to the card. */
Big link_errors(const Card *card, int link, unsigned kind) {
    Big all, links = (Big)link_count(card);
    put_big(&all, all_link_errors(card, kind));
    return (all + links - 1 - (Big)link) / links;
}

/* A card with that link, or the reason why not. */
static Return enter_link(Device device, unsigned link, Card *card) {
    Return result = enter_card(device, card);
    if (result != SUCCESS) return result;
    if (link_count(card) == 0) return NOT_SUPPORTED;
    return link < (unsigned)link_count(card) ? SUCCESS : INVALID_ARGUMENT;
}

API Return nvmlDeviceGetNvLinkState(Device device, unsigned link, unsigned *active) {
    Card card;
    Return result = enter_link(device, link, &card);
    return result == SUCCESS ? put_number(active, link_is_up(&card, (int)link)) : result;
}

API Return nvmlDeviceGetNvLinkVersion(Device device, unsigned link, unsigned *version) {
    Card card;
    Return result = enter_link(device, link, &card);
    return result == SUCCESS ? put_number(version, link_version(&card)) : result;
}

API Return nvmlDeviceGetNvLinkCapability(Device device, unsigned link, unsigned capability, unsigned *able) {
    /* Peer access, system memory, atomics on either, SLI bridge, valid. */
    static const unsigned char ABLE[] = {1, 1, 1, 1, 0, 1};
    Card card;
    Return result = enter_link(device, link, &card);
    if (result != SUCCESS) return result;
    return capability < sizeof ABLE ? put_number(able, ABLE[capability]) : INVALID_ARGUMENT;
}

API Return nvmlDeviceGetNvLinkErrorCounter(Device device, unsigned link, unsigned kind, Big *count) {
    Card card;
    Return result = enter_link(device, link, &card);
    if (result != SUCCESS) return result;
    return kind <= ERROR_LAST ? put_big(count, (double)link_errors(&card, (int)link, kind)) : INVALID_ARGUMENT;
}

API Return nvmlDeviceGetNvLinkRemoteDeviceType(Device device, unsigned link, unsigned *type) {
    Card card;
    Return result = enter_link(device, link, &card);
    if (result != SUCCESS) return result;
    int peer = link_peer(&card, (int)link);
    if (peer == NO_PEER) return NOT_SUPPORTED;
    return put_number(type, peer == SWITCH ? REMOTE_SWITCH : REMOTE_GPU);
}

API Return nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned link, PciInfo *info) {
    Card card;
    Return result = enter_link(device, link, &card);
    if (result != SUCCESS) return result;
    if (info == NULL) return INVALID_ARGUMENT;
    int peer = link_peer(&card, (int)link);
    if (peer == NO_PEER) return NOT_SUPPORTED;
    if (peer == SWITCH)
        put_bus_id(switch_bus((int)link), SWITCH_DEVICE_ID, info);
    else
        card_pci(&card.head, peer, info);
    return SUCCESS;
}

/* Whether one card has a link up that leads towards another. */
static bool reaches(const Card *from, int to) {
    for (int link = 0; link < link_count(from); link++) {
        int peer = link_peer(from, link);
        if (link_is_up(from, link) && (peer == to || peer == SWITCH)) return true;
    }
    return false;
}

/* Both cards of a pair. */
static Return enter_pair(Device one, Device other, Card *a, Card *b) {
    Return result = enter_card(one, a);
    if (result != SUCCESS) return result;
    if (other < devices || other >= devices + CARDS_MAX) return INVALID_ARGUMENT;
    result = read_card((int)(other - devices), b);
    return result == SUCCESS && FLAG(b, lost) ? GPU_IS_LOST : result;
}

API Return nvmlDeviceGetP2PStatus(Device one, Device other, unsigned kind, unsigned *status) {
    Card a, b;
    Return result = enter_pair(one, other, &a, &b);
    if (result != SUCCESS) return result;
    if (kind > P2P_PCI) return INVALID_ARGUMENT;
    bool linked = a.card != b.card && kind != P2P_PCI && reaches(&a, b.card) && reaches(&b, a.card);
    return put_number(status, linked ? P2P_OK : P2P_NONE);
}

API Return nvmlDeviceGetTopologyCommonAncestor(Device one, Device other, unsigned *level) {
    Card a, b;
    Return result = enter_pair(one, other, &a, &b);
    if (result != SUCCESS) return result;
    return put_number(level, a.card == b.card ? LEVEL_SAME : LEVEL_NODE); /* one socket, a root port each */
}

API Return nvmlDeviceOnSameBoard(Device one, Device other, int *same) {
    Card a, b;
    Return result = enter_pair(one, other, &a, &b);
    if (result != SUCCESS) return result;
    if (same == NULL) return INVALID_ARGUMENT;
    *same = a.card == b.card;
    return SUCCESS;
}

static bool behind_a_switch(const Card *card) { return link_count(card) > 0 && link_peer(card, 0) == SWITCH; }

API Return nvmlDeviceGetGpuFabricInfo(Device device, FabricInfo *info) {
    ENTER_CARD(device, card);
    if (info == NULL) return INVALID_ARGUMENT;
    *info = (FabricInfo){.state = behind_a_switch(&card) ? FABRIC_COMPLETED : 0};
    return SUCCESS;
}

API Return nvmlDeviceGetGpuFabricInfoV(Device device, FabricInfoV3 *info) {
    ENTER_CARD(device, card);
    if (info == NULL) return INVALID_ARGUMENT;
    unsigned version = info->version;
    /* The second version is the beginning of the third. */
    if (version != VERSION(FabricInfoV2, 2) && version != VERSION(FabricInfoV3, 3)) return VERSION_MISMATCH;
    memset(info, 0, version & 0xFFFFFF);
    info->version = version;
    info->state = behind_a_switch(&card) ? FABRIC_COMPLETED : 0;
    return SUCCESS;
}
