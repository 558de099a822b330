/* Processes on a card: what they hold, and how much of the card's time they take. */
#include <stdbool.h>

#include "node.h"
#include "put.h"

enum { MODE_COMPUTE = 0, MODE_GRAPHICS = 1, MODE_MPS = 2, MODE_ALL = 3 };

/* The protocol of all lists: as many as there are into `count`, and INSUFFICIENT_SIZE if more than fit. */
static Return fits(unsigned *count, int found, const void *to) {
    unsigned room = *count;
    *count = (unsigned)found;
    if (found == 0) return SUCCESS;
    return room < (unsigned)found || to == NULL ? INSUFFICIENT_SIZE : SUCCESS;
}

static Return running_v1(Device device, unsigned *count, ProcessInfoV1 *infos) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (count == NULL) return INVALID_ARGUMENT;
    result = fits(count, held.count, infos);
    for (int i = 0; result == SUCCESS && i < held.count; i++)
        infos[i] = (ProcessInfoV1){held.holders[i].pid, held.holders[i].bytes};
    return result;
}

static Return running(Device device, unsigned *count, ProcessInfo *infos) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (count == NULL) return INVALID_ARGUMENT;
    result = fits(count, held.count, infos);
    for (int i = 0; result == SUCCESS && i < held.count; i++)
        infos[i] = (ProcessInfo){held.holders[i].pid, held.holders[i].bytes, NO_INSTANCE, NO_INSTANCE};
    return result;
}

static Return nobody(Device device, unsigned *count) {
    ENTER_CARD(device, card);
    return put_number(count, 0);
}

API Return nvmlDeviceGetComputeRunningProcesses(Device device, unsigned *count, ProcessInfoV1 *infos) {
    return running_v1(device, count, infos);
}

API Return nvmlDeviceGetComputeRunningProcesses_v2(Device device, unsigned *count, ProcessInfo *infos) {
    return running(device, count, infos);
}

API Return nvmlDeviceGetComputeRunningProcesses_v3(Device device, unsigned *count, ProcessInfo *infos) {
    return running(device, count, infos);
}

#define NOBODY(name)                                                    \
    API Return name(Device device, unsigned *count, void *infos) {      \
        (void)infos;                                                    \
        return nobody(device, count);                                   \
    }

NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)

API Return nvmlDeviceGetRunningProcessDetailList(Device device, ProcessDetailList *list) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (list == NULL || list->mode > MODE_ALL) return INVALID_ARGUMENT;
    if (list->version != VERSION(ProcessDetailList, 1)) return VERSION_MISMATCH;
    if (list->mode == MODE_GRAPHICS || list->mode == MODE_MPS) held.count = 0;
    result = fits(&list->count, held.count, list->processes);
    for (int i = 0; result == SUCCESS && i < held.count; i++)
        list->processes[i] =
            (ProcessDetail){held.holders[i].pid, held.holders[i].bytes, NO_INSTANCE, NO_INSTANCE, 0};
    return result;
}

/* Leave only those that ran something in the latest window; how much memory bandwidth is theirs is not recorded,
 * so the card's is shared out as its time is. Gives the time of the sample, in µs since 1970. */
static Big keep_busy(const Card *card, Holders *held) {
    double all = 0.0;
    int kept = 0;
    for (int i = 0; i < held->count; i++) {
        if (!(held->holders[i].busy_percent >= 0.5)) continue;
        all += held->holders[i].busy_percent;
        held->holders[kept++] = held->holders[i];
    }
    held->count = kept;
    double memory = rate(card, GET(card, mem_util_percent));
    for (int i = 0; i < kept; i++)
        held->holders[i].memory_percent = memory * held->holders[i].busy_percent / all;
    return card->head.age_s >= 0.0 && card->head.age_s < STALE_S ? tick_us(&card->head) : now_us();
}

static unsigned percent(double value) { return value >= 0.0 ? (unsigned)(value < 100.0 ? value + 0.5 : 100.0) : 0; }

API Return nvmlDeviceGetProcessUtilization(Device device, ProcessSample *samples, unsigned *count, Big last_seen) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (count == NULL) return INVALID_ARGUMENT;
    if (samples == NULL) {
        *count = OWNERS; /* clients ask for the room first, and take any other answer for an error */
        return INSUFFICIENT_SIZE;
    }
    Big time = keep_busy(&card, &held);
    if (held.count == 0 || time <= last_seen) return NOT_FOUND;
    result = fits(count, held.count, samples);
    for (int i = 0; result == SUCCESS && i < held.count; i++)
        samples[i] = (ProcessSample){held.holders[i].pid, time, percent(held.holders[i].busy_percent),
                                     percent(held.holders[i].memory_percent), 0, 0};
    return result;
}

API Return nvmlDeviceGetProcessesUtilizationInfo(Device device, ProcessesUtilization *info) {
    Card card;
    Holders held;
    Return result = enter_holders(device, &card, &held);
    if (result != SUCCESS) return result;
    if (info == NULL) return INVALID_ARGUMENT;
    if (info->version != VERSION(ProcessesUtilization, 1)) return VERSION_MISMATCH;
    if (info->samples == NULL || info->count == 0) {
        info->count = OWNERS;
        return INSUFFICIENT_SIZE;
    }
    Big time = keep_busy(&card, &held);
    if (held.count == 0 || time <= info->last_seen) return NOT_FOUND;
    result = fits(&info->count, held.count, info->samples);
    for (int i = 0; result == SUCCESS && i < held.count; i++)
        info->samples[i] = (ProcessUtilization){time, held.holders[i].pid, percent(held.holders[i].busy_percent),
                                                percent(held.holders[i].memory_percent), 0, 0, 0, 0};
    return result;
}
