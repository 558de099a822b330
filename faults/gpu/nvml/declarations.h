/* What clients of NVML and this library agree on: codes, handles and the layout of structs.
 *
 * Written down from the published interface as its Python bindings use it. The tests hold every size here
 * against theirs.
 */
#ifndef BROWNOUT_DECLARATIONS_H
#define BROWNOUT_DECLARATIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default")))

typedef enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    LIBRARY_NOT_FOUND = 12,
    GPU_IS_LOST = 15,
    LIB_RM_VERSION_MISMATCH = 18,
    OUT_OF_MEMORY = 20,
    VERSION_MISMATCH = 25,
    UNKNOWN_ERROR = 999,
} Return;

typedef struct DeviceHandle *Device;
typedef struct EventSetHandle *EventSet;
typedef unsigned long long Big;

/* The version of a struct that says so itself: its size, and a number above that. */
#define VERSION(type, number) ((unsigned)(sizeof(type) | ((unsigned)(number) << 24)))
#define NO_INSTANCE 0xFFFFFFFFu /* of a GPU that is not cut into instances */

typedef struct {
    Big total, free, used;
} Memory;

typedef struct {
    unsigned version;
    Big total, reserved, free, used;
} MemoryV2;

typedef struct {
    unsigned gpu, memory;
} Utilization;

typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    char bus_id[16];
    unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
} PciInfoV2;

typedef struct {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[32];
} PciInfoExt;

typedef struct {
    unsigned pid;
    Big used;
} ProcessInfoV1;

typedef struct {
    unsigned pid;
    Big used;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct {
    unsigned pid;
    Big used;
    unsigned gpu_instance, compute_instance;
    Big used_protected;
} ProcessDetail;

typedef struct {
    unsigned version, mode, count;
    ProcessDetail *processes;
} ProcessDetailList;

typedef struct {
    unsigned pid;
    Big time;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

typedef struct {
    Big time;
    unsigned pid, sm, memory, encoder, decoder, jpeg, flow;
} ProcessUtilization;

typedef struct {
    unsigned version, count;
    Big last_seen;
    ProcessUtilization *samples;
} ProcessesUtilization;

typedef union {
    double real;
    unsigned number;
    unsigned long word;
    Big big;
    long long signed_big;
    int signed_number;
    unsigned short small;
} Value;

typedef struct {
    unsigned id, scope;
    int64_t time_us, latency_us;
    unsigned type, result;
    Value value;
} FieldValue;

enum { TYPE_REAL = 0, TYPE_NUMBER = 1, TYPE_BIG = 3 };

typedef struct {
    Big reference, violation;
} ViolationTime;

typedef struct {
    Big l1, l2, device_memory, registers;
} EccErrorCounts;

typedef struct {
    unsigned version;
    Big aggregate_parity, aggregate_secded, aggregate_corrected, parity, secded, corrected, buckets[5];
    unsigned threshold_exceeded;
} SramEccStatus;

typedef struct {
    unsigned corrected, corrected_inactive, uncorrected, uncorrected_inactive, pending, failed;
} RemappedRowsV2;

typedef struct {
    unsigned version, sensor;
    int celsius;
} Temperature;

typedef struct {
    unsigned version;
    int celsius;
} MarginTemperature;

typedef struct {
    Device device;
    Big type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

typedef struct {
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned state;
} FabricInfo;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned state;
    unsigned health;
} FabricInfoV2;

typedef struct {
    unsigned version;
    unsigned char cluster[16];
    unsigned status, clique;
    unsigned state;
    unsigned health;
    unsigned char summary;
} FabricInfoV3;

typedef struct {
    unsigned version;
    char branch[80];
} DriverBranch;

#endif
