/* The node's state, and how monitoring is doing. */
#include "node.h"

#include <stdbool.h>
#include <string.h>
#include <time.h>

#include "file.h"
#include "lifecycle.h"
#include "put.h"

#define SLICE_S 0.02 /* a slow call looks this often whether it is still to be slow */

struct DeviceHandle devices[CARDS_MAX];

double head_real(const Head *head, int cell) {
    double value;
    memcpy(&value, &head->cells[cell], sizeof value);
    return value;
}

const char *head_text(const Head *head, int cell) { return (const char *)&head->cells[cell]; }

Big now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (Big)now.tv_sec * 1000000 + (Big)now.tv_nsec / 1000;
}

Big tick_us(const Head *head) {
    double shift_us = 0.0, best_s = 1e9;
    for (int i = 0; i < 3; i++) { /* being interrupted between the two clocks must not shift one against the other */
        double before = monotonic_s(), real = (double)now_us(), took_s = monotonic_s() - before;
        if (took_s < best_s) {
            best_s = took_s;
            shift_us = real - 1e6 * (before + took_s / 2);
        }
    }
    Big at;
    put_big(&at, 1e6 * head_real(head, AT_TICKED) + shift_us);
    return at;
}

double rate(const Card *card, double figure) {
    bool stands_still = card->head.age_s > STALE_S && head_real(&card->head, AT_FROZEN) == 0.0;
    return stands_still ? 0.0 : figure;
}

/* What follows from the cells of the head; false if they make no sense. */
static bool understand(Head *head) {
    int64_t cards = head->cells[AT_CARDS];
    if (head->cells[AT_MAGIC] != MAGIC_VALUE || cards < 1 || cards > CARDS_MAX) return false;
    head->cards = (int)cards;
    head->places = &PLACES[cards];
    head->profile = NULL;
    for (int i = 0; i < PROFILES; i++)
        if (strncmp(PROFILE_TABLE[i].name, head_text(head, AT_PROFILE), NAME_CELLS * CELL) == 0)
            head->profile = &PROFILE_TABLE[i];
    if (head->profile == NULL) return false;
    head->pages_at = file_size() - cards * head->profile->pages;
    head->age_s = monotonic_s() - head_real(head, AT_TICKED);
    return head->pages_at >= head->places->links * CELL;
}

/* Of the file that is held. */
static Return read_head(Head *head) {
    Piece piece = {head->cells, sizeof head->cells, 0};
    return file_read(&piece, 1) && understand(head) ? SUCCESS : DRIVER_NOT_LOADED;
}

Return peek(Head *head) {
    Return result = file_hold();
    if (result != SUCCESS) return result;
    result = read_head(head);
    file_release();
    return result;
}

Return read_card(int number, Card *card) {
    Return result = file_hold();
    if (result != SUCCESS) return result;
    result = read_head(&card->head);
    if (result == SUCCESS && number >= card->head.cards) result = GPU_IS_LOST; /* another node, and a smaller one */
    if (result == SUCCESS) {
        Piece pieces[2] = {
            {card->head.cells, sizeof card->head.cells, 0},
            {card->cells, sizeof card->cells, CELL * (card->head.places->card + (int64_t)number * CARD_CELLS)},
        };
        card->card = number;
        if (!file_read(pieces, 2) || !understand(&card->head)) result = DRIVER_NOT_LOADED;
    }
    file_release();
    return result;
}

Return enter(Head *head) {
    if (!is_initialised()) return UNINITIALIZED;
    double since = monotonic_s();
    for (;;) {
        Return result = peek(head);
        if (result != SUCCESS) return result;
        double left = head_real(head, AT_NVML_DELAY) - (monotonic_s() - since);
        if (!(left > 0.0)) break;
        struct timespec span = {0, (long)((left < SLICE_S ? left : SLICE_S) * 1e9)};
        nanosleep(&span, NULL);
    }
    return (Return)head_real(head, AT_NVML_ERROR);
}

Return enter_card(Device device, Card *card) {
    Return result = enter(&card->head);
    if (result != SUCCESS) return result;
    if (device < devices || device >= devices + CARDS_MAX) return INVALID_ARGUMENT;
    result = read_card((int)(device - devices), card);
    return result == SUCCESS && FLAG(card, lost) ? GPU_IS_LOST : result;
}
