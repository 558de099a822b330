/* Whether the library has been initialised. */
#ifndef BROWNOUT_LIFECYCLE_H
#define BROWNOUT_LIFECYCLE_H

#include <stdbool.h>

bool is_initialised(void);

#endif
