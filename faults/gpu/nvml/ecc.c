/* Memory errors and the rows that were given up for them. All errors are of device memory. */
#include "node.h"
#include "put.h"

enum { CORRECTED = 0, UNCORRECTED = 1 };
enum { VOLATILE = 0, AGGREGATE = 1 };
enum { LOCATION_MEMORY = 2, LOCATION_LAST = 7 };

static double errors(const Card *card, unsigned kind, unsigned counter) {
    if (kind == CORRECTED) return counter == VOLATILE ? GET(card, ecc_corrected_volatile) : GET(card, ecc_corrected);
    return counter == VOLATILE ? GET(card, ecc_uncorrected_volatile) : GET(card, ecc_uncorrected);
}

API Return nvmlDeviceGetTotalEccErrors(Device device, unsigned kind, unsigned counter, Big *count) {
    ENTER_CARD(device, card);
    if (kind > UNCORRECTED || counter > AGGREGATE) return INVALID_ARGUMENT;
    return put_big(count, errors(&card, kind, counter));
}

API Return nvmlDeviceGetMemoryErrorCounter(Device device, unsigned kind, unsigned counter, unsigned location,
                                           Big *count) {
    ENTER_CARD(device, card);
    if (kind > UNCORRECTED || counter > AGGREGATE || location > LOCATION_LAST) return INVALID_ARGUMENT;
    return put_big(count, location == LOCATION_MEMORY ? errors(&card, kind, counter) : 0.0);
}

API Return nvmlDeviceGetDetailedEccErrors(Device device, unsigned kind, unsigned counter, EccErrorCounts *counts) {
    ENTER_CARD(device, card);
    if (counts == NULL || kind > UNCORRECTED || counter > AGGREGATE) return INVALID_ARGUMENT;
    *counts = (EccErrorCounts){0};
    return put_big(&counts->device_memory, errors(&card, kind, counter));
}

API Return nvmlDeviceGetSramEccErrorStatus(Device device, SramEccStatus *status) {
    ENTER_CARD(device, card);
    if (status == NULL) return INVALID_ARGUMENT;
    if (status->version != VERSION(SramEccStatus, 1)) return VERSION_MISMATCH;
    *status = (SramEccStatus){.version = status->version};
    return SUCCESS;
}

API Return nvmlDeviceGetRemappedRows(Device device, unsigned *corrected, unsigned *uncorrected, unsigned *pending,
                                     unsigned *failed) {
    ENTER_CARD(device, card);
    if (corrected == NULL || uncorrected == NULL || pending == NULL || failed == NULL) return INVALID_ARGUMENT;
    put_number(corrected, GET(&card, remapped_corrected));
    put_number(uncorrected, GET(&card, remapped_uncorrected));
    *pending = FLAG(&card, remap_pending);
    *failed = FLAG(&card, remap_failed);
    return SUCCESS;
}

API Return nvmlDeviceGetRemappedRows_v2(Device device, RemappedRowsV2 *rows) {
    if (rows == NULL) return INVALID_ARGUMENT;
    rows->corrected_inactive = rows->uncorrected_inactive = 0;
    return nvmlDeviceGetRemappedRows(device, &rows->corrected, &rows->uncorrected, &rows->pending, &rows->failed);
}
