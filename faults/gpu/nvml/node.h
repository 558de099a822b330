/* A node's file, read: one consistent view a call, and never a wait for whoever writes. */
#ifndef BROWNOUT_NODE_H
#define BROWNOUT_NODE_H

#include "declarations.h"
#include "layout.h"

#define STALE_S 1.5 /* telemetry that is older is of a node that nobody attends to */

struct DeviceHandle {
    int card;
};

extern struct DeviceHandle devices[CARDS_MAX];

/* The head of the file, and what follows from it. */
typedef struct {
    int64_t cells[HEAD_CELLS];
    int cards;
    const Places *places;
    const Profile *profile;
    int64_t pages_at; /* bytes from the start of the file to the first page table */
    double age_s;     /* since telemetry was last brought up to date */
} Head;

/* One card's telemetry. */
typedef struct {
    Head head;
    int card;
    double cells[CARD_CELLS];
} Card;

/* An owner of memory whose process is alive. A process that is attached twice is one holder. */
typedef struct {
    unsigned pid;
    Big bytes;
    double busy_percent, memory_percent;
} Holder;

typedef struct {
    Big total, used;
    int count;
    Holder holders[OWNERS];
} Holders;

/* The beginning of every call: initialised, as slow as monitoring is, and as broken. Fills in the head. */
Return enter(Head *head);

/* `enter`, and a card's telemetry. A card that is lost says so. */
Return enter_card(Device device, Card *card);

/* `enter_card`, and whose memory it is, as of now. */
Return enter_holders(Device device, Card *card, Holders *holders);

/* The head, or a card, again within a call: without what `enter` does. */
Return peek(Head *head);
Return read_card(int number, Card *card);

/* The beginnings of most functions: they return at once if there is nothing to be read. */
#define ENTER(head)                                 \
    Head head;                                      \
    do {                                            \
        Return entered = enter(&head);              \
        if (entered != SUCCESS) return entered;     \
    } while (0)
#define ENTER_CARD(device, card)                    \
    Card card;                                      \
    do {                                            \
        Return entered = enter_card(device, &card); \
        if (entered != SUCCESS) return entered;     \
    } while (0)

/* A figure of a card by its name in the telemetry. */
#define GET(card, name) ((card)->cells[FIELD_##name])
#define FLAG(card, name) (GET(card, name) != 0.0)

/* A figure over the latest window. It is 0 when nobody has brought telemetry up to date for a while, unless it is
 * frozen: then it stands still on purpose. */
double rate(const Card *card, double figure);

double head_real(const Head *head, int cell);
const char *head_text(const Head *head, int cell);
Big now_us(void); /* CLOCK_REALTIME */
Big tick_us(const Head *head); /* when telemetry was last brought up to date, on that clock */

#endif
