/* Whether the process that an owner was is still there. */
#ifndef BROWNOUT_OWNER_H
#define BROWNOUT_OWNER_H

#include <stdbool.h>
#include <stdint.h>

/* `started` is in clock ticks since boot: a later process with the same id is another one. */
bool is_alive(int64_t pid, int64_t started);

#endif
