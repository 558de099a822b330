/* The node's file. It is read with pread, not mapped: a file that is cut short is then an error, not a signal.
 *
 * Writers keep the sequence odd while they write. A reader tries again for a few milliseconds, then takes what
 * is there: a writer that was killed or stopped halfway must not hang whoever watches it.
 */
#include "file.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "layout.h"

#define PATIENCE_S 0.005

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static char path[4096];
static int file = -1;
static struct stat opened;
static int64_t stuck_at = 0; /* an odd sequence that has been waited for in vain */

double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

Return file_choose(void) {
    const char *name = getenv("BROWNOUT_NODE");
    char here[2048] = "";
    Return found = DRIVER_NOT_LOADED;
    pthread_rwlock_wrlock(&lock);
    path[0] = '\0';
    if (name != NULL && name[0] != '\0') {
        /* Absolute: the process may go elsewhere later. */
        if (name[0] != '/' && getcwd(here, sizeof here) == NULL) here[0] = '\0';
        int wrote = snprintf(path, sizeof path, "%s%s%s", here, here[0] ? "/" : "", name);
        if (wrote > 0 && (size_t)wrote < sizeof path) found = SUCCESS;
    }
    pthread_rwlock_unlock(&lock);
    return found;
}

void file_close(void) {
    pthread_rwlock_wrlock(&lock);
    if (file >= 0) close(file);
    file = -1;
    pthread_rwlock_unlock(&lock);
}

void file_release(void) { pthread_rwlock_unlock(&lock); }

int64_t file_size(void) {
    struct stat now;
    return fstat(file, &now) == 0 ? (int64_t)now.st_size : -1;
}

/* Take the read lock with the file open that `path` names now; it may have been replaced since the last call. */
Return file_hold(void) {
    struct stat there;
    pthread_rwlock_rdlock(&lock);
    bool gone = stat(path, &there) != 0;
    if (!gone && file >= 0 && there.st_ino == opened.st_ino && there.st_dev == opened.st_dev) return SUCCESS;
    pthread_rwlock_unlock(&lock);
    pthread_rwlock_wrlock(&lock);
    if (file >= 0) close(file);
    file = gone ? -1 : open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file >= 0 && (fstat(file, &opened) != 0 || !S_ISREG(opened.st_mode))) {
        close(file);
        file = -1;
    }
    bool open_now = file >= 0;
    pthread_rwlock_unlock(&lock);
    if (!open_now) return DRIVER_NOT_LOADED;
    pthread_rwlock_rdlock(&lock);
    if (file >= 0) return SUCCESS;
    pthread_rwlock_unlock(&lock); /* another thread has closed it in between */
    return DRIVER_NOT_LOADED;
}

static bool read_at(void *to, size_t size, int64_t from) {
    return pread(file, to, size, from) == (ssize_t)size;
}

/* Read pieces while nobody writes, or as they are if somebody does not stop. */
bool file_read(const Piece *pieces, int count) {
    double until = 0.0;
    for (;;) {
        int64_t before, after;
        if (!read_at(&before, CELL, AT_SEQUENCE * CELL)) return false;
        /* The barriers keep weakly ordered machines from reading the pieces before or after their frame. */
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        for (int i = 0; i < count; i++)
            if (!read_at(pieces[i].to, pieces[i].size, pieces[i].from)) return false;
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (!read_at(&after, CELL, AT_SEQUENCE * CELL)) return false;
        if (before == after && before % 2 == 0) return true;
        if (before == after && before == __atomic_load_n(&stuck_at, __ATOMIC_RELAXED)) return true;
        double now = monotonic_s();
        if (until == 0.0) until = now + PATIENCE_S;
        if (now > until) {
            if (before == after) __atomic_store_n(&stuck_at, before, __ATOMIC_RELAXED);
            return true;
        }
        sched_yield();
    }
}
