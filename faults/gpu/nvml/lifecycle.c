/* From initialisation to shutdown, and what is said of the system as a whole. */
#include "lifecycle.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "file.h"
#include "node.h"
#include "put.h"

#define CUDA_VERSION 13000

static pthread_mutex_t counting = PTHREAD_MUTEX_INITIALIZER;
static unsigned users = 0;

bool is_initialised(void) { return __atomic_load_n(&users, __ATOMIC_ACQUIRE) > 0; }

/* Of what can be wrong with monitoring: there is no NVML at all. Other codes are for the calls that come after. */
static bool keeps_from_coming_up(Return result) {
    return result == DRIVER_NOT_LOADED || result == TIMEOUT || result == LIBRARY_NOT_FOUND ||
           result == LIB_RM_VERSION_MISMATCH;
}

API Return nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    pthread_mutex_lock(&counting);
    Return result = file_choose();
    if (result == SUCCESS) {
        __atomic_add_fetch(&users, 1, __ATOMIC_RELEASE);
        Head head;
        result = enter(&head);
        if (!keeps_from_coming_up(result)) result = SUCCESS;
        if (result != SUCCESS) __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&counting);
    return result;
}

API Return nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API Return nvmlInit(void) { return nvmlInitWithFlags(0); }

API Return nvmlShutdown(void) {
    pthread_mutex_lock(&counting);
    Return result = users ? SUCCESS : UNINITIALIZED;
    if (users && __atomic_sub_fetch(&users, 1, __ATOMIC_RELEASE) == 0) file_close();
    pthread_mutex_unlock(&counting);
    return result;
}

API const char *nvmlErrorString(Return code) {
    static const char *const TEXTS[] = {
        "Success", "Uninitialized", "Invalid Argument", "Not Supported", "Insufficient Permissions",
        "Already Initialized", "Not Found", "Insufficient Size", "Insufficient External Power",
        "Driver Not Loaded", "Timeout", "Interrupt Request Issue", "NVML Shared Library Not Found",
        "Function Not Found", "Corrupted infoROM", "GPU is lost", "GPU requires reset",
        "GPU access blocked by the operating system", "Driver/library version mismatch",
        "In use by another client", "Insufficient Memory", "No data", "vGPU ECC not supported",
        "Insufficient resources", "Frequency not supported", "Argument version mismatch", "Deprecated",
        "Not ready", "GPU not found", "Invalid state",
    };
    return (unsigned)code < sizeof TEXTS / sizeof *TEXTS ? TEXTS[code] : "Unknown Error";
}

static Return system_text(char *to, unsigned size, const char *text) {
    Head head;
    Return result = enter(&head);
    return result == SUCCESS ? put_text(to, size, text) : result;
}

API Return nvmlSystemGetDriverVersion(char *version, unsigned size) {
    return system_text(version, size, DRIVER_VERSION);
}

API Return nvmlSystemGetNVMLVersion(char *version, unsigned size) {
    return system_text(version, size, "13." DRIVER_VERSION);
}

API Return nvmlSystemGetDriverBranch(DriverBranch *info, unsigned size) {
    if (info == NULL) return INVALID_ARGUMENT;
    if (info->version != VERSION(DriverBranch, 1)) return VERSION_MISMATCH;
    return system_text(info->branch, size < sizeof info->branch ? size : sizeof info->branch, "r580_00");
}

API Return nvmlSystemGetCudaDriverVersion_v2(int *version) {
    ENTER(head);
    if (version == NULL) return INVALID_ARGUMENT;
    *version = CUDA_VERSION;
    return SUCCESS;
}

API Return nvmlSystemGetCudaDriverVersion(int *version) { return nvmlSystemGetCudaDriverVersion_v2(version); }

API Return nvmlSystemGetProcessName(unsigned pid, char *name, unsigned size) {
    ENTER(head);
    char file_name[48], text[4096];
    snprintf(file_name, sizeof file_name, "/proc/%u/cmdline", pid);
    int file = open(file_name, O_RDONLY | O_CLOEXEC);
    ssize_t got = file < 0 ? -1 : read(file, text, sizeof text - 1);
    if (file >= 0) close(file);
    if (got <= 0) return NOT_FOUND;
    text[got] = '\0'; /* up to the first zero: the program, without its arguments */
    return put_text(name, size, text);
}

static Return none(unsigned *count) {
    ENTER(head);
    return put_number(count, 0);
}

API Return nvmlUnitGetCount(unsigned *count) { return none(count); }
API Return nvmlGetExcludedDeviceCount(unsigned *count) { return none(count); }
