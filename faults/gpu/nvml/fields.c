/* Values by the number of a field. A field that is not known says so for itself; the others are still given. */
#include <time.h>

#include "nvlink.h"

#define ALL_LINKS 0xFFFFFFFFu
#define PATIENCE_S 0.25 /* two ticks and a half */

enum {
    ECC_CURRENT = 1, ECC_PENDING = 2, SBE_VOLATILE = 3, DBE_VOLATILE = 4, SBE_AGGREGATE = 5, DBE_AGGREGATE = 6,
    CRC_FLIT_TOTAL = 38, CRC_DATA_TOTAL = 45, REPLAY_TOTAL = 52, RECOVERY_TOTAL = 59,
    POLICY_POWER = 74, POLICY_THERMAL = 75, ENERGY_MJ = 83, LINK_SPEED = 90, LINKS = 91, PCIE_REPLAYS = 94,
    DATA_TX = 138, DATA_RX = 139, RAW_TX = 140, RAW_RX = 141,
    REMAPPED_CORRECTED = 142, REMAPPED_UNCORRECTED = 143, REMAP_PENDING = 144, REMAP_FAILED = 145,
    REMOTE_LINK = 146, SWITCH_LINKS = 147, LINK_ECC_TOTAL = 160,
    LINK_REPLAYS = 161, LINK_RECOVERIES = 162, LINK_CRC = 163, LINK_SPEED_OF = 164, LINK_STATE_OF = 165,
    LINK_VERSION_OF = 166,
    POWER_AVERAGE = 185, POWER_INSTANT = 186, POWER_LEAST = 187, POWER_MOST = 188, POWER_DEFAULT = 189,
    POWER_LIMIT = 190, ENERGY = 191, POWER_ASKED = 192, PCIE_TX_BYTES = 197, PCIE_RX_BYTES = 198,
    LINK_TX_BYTES = 202, LINK_RX_BYTES = 204, RECOVERY_ACTION = 230, SW_THERMAL = 269,
};

static Return number(FieldValue *to, double value) {
    to->type = TYPE_NUMBER;
    return put_number(&to->value.number, value);
}

static Return big(FieldValue *to, double value) {
    to->type = TYPE_BIG;
    return put_big(&to->value.big, value);
}

/* Bytes over one link, or over all of them, in units. */
static Return moved(const Card *card, FieldValue *to, bool sent, double unit) {
    double bytes = 0.0;
    int links = link_count(card);
    if (links == 0) return NOT_SUPPORTED;
    if (to->scope != ALL_LINKS && to->scope >= (unsigned)links) return INVALID_ARGUMENT;
    for (int link = 0; link < links; link++)
        if (to->scope == ALL_LINKS || to->scope == (unsigned)link)
            bytes += sent ? link_sent(card, link) : link_received(card, link);
    return big(to, bytes / unit);
}

/* Fields of one link, whose number is the scope. */
static Return of_link(const Card *card, FieldValue *to) {
    if (link_count(card) == 0) return NOT_SUPPORTED;
    if (to->scope >= (unsigned)link_count(card)) return INVALID_ARGUMENT;
    int link = (int)to->scope;
    switch (to->id) {
    case REMOTE_LINK: return link_peer(card, link) == NO_PEER ? NOT_SUPPORTED : number(to, link);
    case LINK_REPLAYS: return big(to, (double)link_errors(card, link, ERROR_REPLAY));
    case LINK_RECOVERIES: return big(to, (double)link_errors(card, link, ERROR_RECOVERY));
    case LINK_CRC: return big(to, (double)link_errors(card, link, ERROR_CRC_FLIT));
    case LINK_SPEED_OF:
        return number(to, link_is_up(card, link) ? GET(card, nvlink_bytes_per_s) / 1e6 : 0.0);
    case LINK_STATE_OF: return number(to, link_is_up(card, link));
    default: return number(to, link_version(card));
    }
}

/* Fields that count what NVLinks of a card do; they make no sense of a card without. */
static Return of_links(const Card *card, FieldValue *to) {
    int switched = 0;
    if (link_count(card) == 0) return NOT_SUPPORTED;
    for (int link = 0; link < link_count(card); link++) switched += link_peer(card, link) == SWITCH;
    switch (to->id) {
    case CRC_FLIT_TOTAL: return big(to, all_link_errors(card, ERROR_CRC_FLIT));
    case REPLAY_TOTAL: return big(to, all_link_errors(card, ERROR_REPLAY));
    case RECOVERY_TOTAL: return big(to, all_link_errors(card, ERROR_RECOVERY));
    case LINK_SPEED: return number(to, GET(card, nvlink_bytes_per_s) / 1e6);
    case SWITCH_LINKS: return number(to, switched);
    default: return big(to, 0.0);
    }
}

static Return field(const Card *card, FieldValue *to) {
    switch (to->id) {
    case ECC_CURRENT: case ECC_PENDING: return number(to, 1);
    case SBE_VOLATILE: return big(to, GET(card, ecc_corrected_volatile));
    case DBE_VOLATILE: return big(to, GET(card, ecc_uncorrected_volatile));
    case SBE_AGGREGATE: return big(to, GET(card, ecc_corrected));
    case DBE_AGGREGATE: return big(to, GET(card, ecc_uncorrected));
    case CRC_FLIT_TOTAL: case CRC_DATA_TOTAL: case REPLAY_TOTAL: case RECOVERY_TOTAL: case LINK_SPEED:
    case SWITCH_LINKS: case LINK_ECC_TOTAL: return of_links(card, to);
    case REMOTE_LINK: case LINK_REPLAYS: case LINK_RECOVERIES: case LINK_CRC: case LINK_SPEED_OF:
    case LINK_STATE_OF: case LINK_VERSION_OF: return of_link(card, to);
    case POLICY_POWER: return big(to, 1e9 * GET(card, throttled_power_s));
    case POLICY_THERMAL: case SW_THERMAL: return big(to, 1e9 * GET(card, throttled_thermal_s));
    case ENERGY_MJ: case ENERGY: return big(to, 1e3 * GET(card, energy_j));
    case LINKS: return number(to, link_count(card));
    case PCIE_REPLAYS: return number(to, GET(card, pcie_replays));
    case DATA_TX: case RAW_TX: return moved(card, to, true, 1024);
    case DATA_RX: case RAW_RX: return moved(card, to, false, 1024);
    case LINK_TX_BYTES: return moved(card, to, true, 1);
    case LINK_RX_BYTES: return moved(card, to, false, 1);
    case REMAPPED_CORRECTED: return number(to, GET(card, remapped_corrected));
    case REMAPPED_UNCORRECTED: return number(to, GET(card, remapped_uncorrected));
    case REMAP_PENDING: return number(to, FLAG(card, remap_pending));
    case REMAP_FAILED: return number(to, FLAG(card, remap_failed));
    case POWER_AVERAGE: case POWER_INSTANT: return number(to, 1e3 * GET(card, power_w));
    case POWER_LEAST: return number(to, 1e3 * GET(card, power_min_w));
    case POWER_MOST: case POWER_DEFAULT: return number(to, 1e3 * GET(card, power_default_w));
    case POWER_LIMIT: case POWER_ASKED: return number(to, 1e3 * GET(card, power_limit_w));
    case PCIE_TX_BYTES: return big(to, GET(card, pcie_tx_bytes));
    case PCIE_RX_BYTES: return big(to, GET(card, pcie_rx_bytes));
    case RECOVERY_ACTION: return number(to, GET(card, recovery_action));
    default: return NOT_SUPPORTED;
    }
}

static bool is_counter_of_links(unsigned id) {
    return (id >= DATA_TX && id <= RAW_RX) || id == LINK_TX_BYTES || id == LINK_RX_BYTES;
}

/* Clients divide what links moved between two calls by the time between the two timestamps. So these are the moments
 * at which the counters were brought up to date, and who asks again before the next such moment waits for it. */
static Return await_tick(Card *card, const FieldValue *values, int count, Big *at_us) {
    static double last_tick[CARDS_MAX][2][NVLINKS_MAX + 1];
    double waited_s = 0.0;
    bool waits = false;
    double(*last)[NVLINKS_MAX + 1] = last_tick[card->card];
    for (int i = 0; i < count; i++) {
        if (!is_counter_of_links(values[i].id)) continue;
        unsigned link = values[i].scope < NVLINKS_MAX ? values[i].scope : NVLINKS_MAX;
        double before, tick = head_real(&card->head, AT_TICKED);
        __atomic_load(&last[values[i].id % 2][link], &before, __ATOMIC_RELAXED);
        waits = true;
        /* A node that nobody attends to has no next tick. */
        while (before == tick && waited_s < PATIENCE_S && card->head.age_s < STALE_S) {
            struct timespec step = {0, 2000000};
            nanosleep(&step, NULL);
            waited_s += 2e-3;
            Return result = read_card(card->card, card);
            if (result != SUCCESS) return result;
            tick = head_real(&card->head, AT_TICKED);
        }
        __atomic_store(&last[values[i].id % 2][link], &tick, __ATOMIC_RELAXED);
    }
    bool attended = card->head.age_s >= 0.0 && card->head.age_s < STALE_S && waited_s < PATIENCE_S;
    *at_us = waits && attended ? tick_us(&card->head) : now_us();
    return FLAG(card, lost) ? GPU_IS_LOST : SUCCESS;
}

API Return nvmlDeviceGetFieldValues(Device device, int count, FieldValue *values) {
    ENTER_CARD(device, card);
    Big tick_us;
    if (values == NULL || count < 1) return INVALID_ARGUMENT;
    Return result = await_tick(&card, values, count, &tick_us);
    if (result != SUCCESS) return result;
    for (int i = 0; i < count; i++) {
        values[i].value.big = 0;
        values[i].type = TYPE_NUMBER;
        values[i].time_us = (int64_t)(is_counter_of_links(values[i].id) ? tick_us : now_us());
        values[i].latency_us = 0;
        values[i].result = field(&card, &values[i]);
    }
    return SUCCESS;
}
