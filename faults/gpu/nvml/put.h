/* Results into a caller's variables, which may be missing. */
#ifndef BROWNOUT_PUT_H
#define BROWNOUT_PUT_H

#include <stdio.h>
#include <string.h>

#include "declarations.h"

/* INSUFFICIENT_SIZE if it does not fit with its end; then nothing is written. */
static inline Return put_text(char *to, unsigned size, const char *text) {
    if (to == NULL) return INVALID_ARGUMENT;
    if (strlen(text) >= size) return INSUFFICIENT_SIZE;
    snprintf(to, size, "%s", text);
    return SUCCESS;
}

/* Whatever is in a file that somebody has spoilt, no figure may be more than its variable holds. */
static inline Return put_number(unsigned *to, double value) {
    if (to == NULL) return INVALID_ARGUMENT;
    *to = value > 0.0 ? (value < 4294967295.0 ? (unsigned)(value + 0.5) : 4294967295u) : 0;
    return SUCCESS;
}

static inline Return put_big(Big *to, double value) {
    if (to == NULL) return INVALID_ARGUMENT;
    *to = value > 0.0 ? (value < 18e18 ? (Big)value : (Big)18e18) : 0;
    return SUCCESS;
}

#endif
