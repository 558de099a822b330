/* Processes that own something on the node, by /proc. The same rules as in faults/gpu/owners.py. */
#include "owner.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define EXITING 0x4 /* PF_EXITING: set before the kernel lets go of the process's locks */

bool is_alive(int64_t pid, int64_t started) {
    char name[48], text[1024];
    snprintf(name, sizeof name, "/proc/%lld/stat", (long long)pid);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return false;
    ssize_t got = read(file, text, sizeof text - 1);
    close(file);
    if (got <= 0) return false;
    text[got] = '\0';
    /* The name, in parentheses, may hold anything; what follows it is split by spaces. */
    const char *rest = strrchr(text, ')');
    char state;
    unsigned flags;
    long long start;
    if (rest == NULL || sscanf(rest + 1, " %c %*s %*s %*s %*s %*s %u %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                                         "%*s %lld", &state, &flags, &start) != 3)
        return false;
    return state != 'Z' && state != 'X' && state != 'x' && !(flags & EXITING) && start == started;
}
