/* Whose memory a card's is: the page table as of now, by owners that are alive. */
#include <stdlib.h>

#include "file.h"
#include "node.h"
#include "owner.h"
#include "put.h"

Return enter_holders(Device device, Card *card, Holders *holders) {
    Return result = enter_card(device, card);
    if (result != SUCCESS) return result;
    const Places *places = card->head.places;
    int64_t pids[OWNERS], starts[OWNERS], pages[256] = {0}, count = card->head.profile->pages;
    double busy[OWNERS];
    unsigned char *table = malloc((size_t)count);
    if (table == NULL) return OUT_OF_MEMORY;
    Piece pieces[4] = {
        {pids, sizeof pids, CELL * places->owner_pids},
        {starts, sizeof starts, CELL * places->owner_starts},
        {busy, sizeof busy, CELL * (places->owner_busy + (int64_t)card->card * OWNERS)},
        {table, (size_t)count, card->head.pages_at + card->card * count},
    };
    result = file_hold();
    if (result == SUCCESS) {
        if (!file_read(pieces, 4)) result = DRIVER_NOT_LOADED;
        file_release();
    }
    for (int64_t i = 0; result == SUCCESS && i < count; i++) pages[table[i]]++;
    free(table);
    if (result != SUCCESS) return result;
    holders->total = (Big)card->head.profile->memory_bytes;
    holders->used = 0;
    holders->count = 0;
    for (int slot = 0; slot < OWNERS; slot++) {
        /* What a dead owner held is free, although nobody may have come by yet to take it back. */
        if (pages[slot + 1] == 0 || pids[slot] == 0 || !is_alive(pids[slot], starts[slot])) continue;
        Big bytes = (Big)(pages[slot + 1] * card->head.profile->page_bytes);
        int at = 0;
        while (at < holders->count && holders->holders[at].pid != (unsigned)pids[slot]) at++;
        if (at == holders->count) holders->holders[holders->count++] = (Holder){(unsigned)pids[slot], 0, 0.0, 0.0};
        holders->holders[at].bytes += bytes;
        holders->holders[at].busy_percent += rate(card, busy[slot]);
        holders->used += bytes;
    }
    if (head_real(&card->head, AT_FROZEN) != 0.0) put_big(&holders->used, GET(card, used_bytes));
    return SUCCESS;
}
