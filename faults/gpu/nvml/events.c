/* Events: who has asked for which, and what has happened since. */
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "file.h"
#include "node.h"

#define POLL_S 0.005
#define SUPPORTED EVENTS_ALL

typedef struct {
    int64_t serial, time_us, card, type, data;
} Event;

struct EventSetHandle {
    pthread_mutex_t lock;
    int64_t seen;                /* the serial of the last event that was looked at */
    int64_t since[CARDS_MAX];    /* events up to this one were before registration */
    Big wanted[CARDS_MAX];
};

/* The oldest event that a set has not had; NOT_FOUND if there is none. */
static Return next_event(EventSet set, Event *event) {
    int64_t ring[EVENTS][EVENT_CELLS];
    Head head;
    Return result = peek(&head);
    if (result != SUCCESS || head.cells[AT_EVENT_SERIAL] == set->seen) return result == SUCCESS ? NOT_FOUND : result;
    Piece piece = {ring, sizeof ring, CELL * head.places->event};
    result = file_hold();
    if (result != SUCCESS) return result;
    if (!file_read(&piece, 1)) result = DRIVER_NOT_LOADED;
    file_release();
    if (result != SUCCESS) return result;
    event->serial = 0;
    for (int slot = 0; slot < EVENTS; slot++) {
        const int64_t *each = ring[slot];
        if (each[2] < 0 || each[2] >= head.cards || !((Big)each[3] & set->wanted[each[2]])) continue;
        if (each[0] <= set->seen || each[0] <= set->since[each[2]]) continue;
        if (event->serial == 0 || each[0] < event->serial)
            *event = (Event){each[0], each[1], each[2], each[3], each[4]};
    }
    set->seen = event->serial ? event->serial : head.cells[AT_EVENT_SERIAL];
    return event->serial ? SUCCESS : NOT_FOUND;
}

API Return nvmlDeviceGetSupportedEventTypes(Device device, Big *types) {
    ENTER_CARD(device, card);
    if (types == NULL) return INVALID_ARGUMENT;
    *types = SUPPORTED;
    return SUCCESS;
}

API Return nvmlEventSetCreate(EventSet *set) {
    ENTER(head);
    if (set == NULL) return INVALID_ARGUMENT;
    *set = calloc(1, sizeof **set);
    if (*set == NULL) return OUT_OF_MEMORY;
    pthread_mutex_init(&(*set)->lock, NULL);
    (*set)->seen = head.cells[AT_EVENT_SERIAL];
    return SUCCESS;
}

API Return nvmlDeviceRegisterEvents(Device device, Big types, EventSet set) {
    ENTER_CARD(device, card);
    if (set == NULL) return INVALID_ARGUMENT;
    if (types & ~(Big)SUPPORTED) return NOT_SUPPORTED;
    pthread_mutex_lock(&set->lock);
    if (!set->wanted[card.card]) set->since[card.card] = card.head.cells[AT_EVENT_SERIAL];
    set->wanted[card.card] |= types;
    pthread_mutex_unlock(&set->lock);
    return SUCCESS;
}

API Return nvmlEventSetWait_v2(EventSet set, EventData *data, unsigned timeout_ms) {
    double until = monotonic_s() + 1e-3 * timeout_ms;
    ENTER(head);
    if (set == NULL || data == NULL) return INVALID_ARGUMENT;
    for (;;) {
        Event event;
        pthread_mutex_lock(&set->lock);
        Return result = next_event(set, &event);
        pthread_mutex_unlock(&set->lock);
        if (result == SUCCESS) {
            *data = (EventData){&devices[event.card], (Big)event.type, (Big)event.data, NO_INSTANCE, NO_INSTANCE};
            return SUCCESS;
        }
        if (result != NOT_FOUND) return result;
        double left = until - monotonic_s();
        if (!(left > 0.0)) return TIMEOUT;
        struct timespec span = {0, (long)(1e9 * (left < POLL_S ? left : POLL_S))};
        nanosleep(&span, NULL);
    }
}

API Return nvmlEventSetWait(EventSet set, EventData *data, unsigned timeout_ms) {
    return nvmlEventSetWait_v2(set, data, timeout_ms);
}

API Return nvmlEventSetFree(EventSet set) {
    if (set == NULL) return INVALID_ARGUMENT;
    pthread_mutex_destroy(&set->lock);
    free(set);
    return SUCCESS;
}
