/* The node's file: which one it is now, and pieces of it that belong together. */
#ifndef BROWNOUT_FILE_H
#define BROWNOUT_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "declarations.h"

typedef struct {
    void *to;
    size_t size;
    int64_t from; /* bytes from the start of the file */
} Piece;

/* Remember which file BROWNOUT_NODE names; let go of it. */
Return file_choose(void);
void file_close(void);

/* Keep the file that is at that path now from being closed until `file_release`. */
Return file_hold(void);
void file_release(void);

/* Read pieces while nobody writes, or as they are if somebody does not stop; false if the file is too short. */
bool file_read(const Piece *pieces, int count);

/* Bytes of the file that is held, or -1. */
int64_t file_size(void);

double monotonic_s(void);

#endif
