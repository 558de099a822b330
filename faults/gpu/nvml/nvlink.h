/* One physical NVLink of a card. */
#ifndef BROWNOUT_NVLINK_H
#define BROWNOUT_NVLINK_H

#include "node.h"
#include "put.h"

enum { ERROR_REPLAY = 0, ERROR_RECOVERY = 1, ERROR_CRC_FLIT = 2, ERROR_CRC_DATA = 3, ERROR_LAST = 4 };

static inline int link_count(const Card *card) {
    double links = GET(card, nvlinks);
    return links > 0.0 && links <= NVLINKS_MAX ? (int)links : 0;
}
static inline bool link_is_up(const Card *card, int link) {
    Big active;
    put_big(&active, GET(card, nvlinks_active));
    return (active >> link) & 1;
}
/* The card at the other end, SWITCH, or NO_PEER. */
static inline int link_peer(const Card *card, int link) {
    double peer = card->cells[FIELD_nvlink_peer_0 + link];
    return peer >= NO_PEER && peer < CARDS_MAX ? (int)peer : NO_PEER;
}
static inline double link_sent(const Card *card, int link) { return card->cells[FIELD_nvlink_tx_bytes_0 + link]; }
static inline double link_received(const Card *card, int link) {
    return card->cells[FIELD_nvlink_rx_bytes_0 + link];
}

unsigned link_version(const Card *card);

/* The card's errors of a kind, and the part of them that is counted on one link. */
double all_link_errors(const Card *card, unsigned kind);
Big link_errors(const Card *card, int link, unsigned kind);

#endif
