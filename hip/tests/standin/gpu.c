// A stand-in for libamdhip64 (-DROCM) and for libcudart with libcuda: the functions that the crate calls, on the host's own
// memory, with faults on command. Work of a stream is done when it is asked for; an event comes when it is not held.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef ROCM
#define NAME(hip, cuda) hip
#else
#define NAME(hip, cuda) cuda
#endif

enum { OK = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, NOT_READY = 600, NOT_FOUND = 500 };
enum { BLOCKS = 256 };

struct block { char *base; size_t bytes; int device, file, pinned; uint64_t id; };
static struct block blocks[BLOCKS];
static uint64_t next_id = 1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local int current, last_error;

#ifndef DEVICES
#define DEVICES 2
#endif
// What the tests set. `failing` is a function's name as the vendor has it.
int standin_devices = DEVICES, standin_held, standin_context = 1, standin_live_blocks, standin_runtime_version = NAME(70253211, 13000);
int standin_retained;
uint32_t standin_mask;
static char failing[64];
static int failing_code;
void standin_fail(const char *name, int code) { snprintf(failing, sizeof failing, "%s", name); failing_code = code; }

static int fault(const char *name, int code) {
    if (strcmp(failing, name) == 0) code = failing_code;
    if (code) last_error = code;
    return code;
}
#define TEXT2(x) #x
#define TEXT(x) TEXT2(x)
#define CALL(hip, cuda, ...) int NAME(hip, cuda)(__VA_ARGS__)
#define DONE(hip, cuda, code) return fault(TEXT(NAME(hip, cuda)), code)

static struct block *find(const void *address) {
    for (int i = 0; i < BLOCKS; i++)
        if (blocks[i].base && (char *)address >= blocks[i].base && (char *)address < blocks[i].base + blocks[i].bytes) return &blocks[i];
    return NULL;
}

static void *take(size_t bytes, int pinned, int file) {
    char *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (base == MAP_FAILED) return NULL;
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BLOCKS; i++)
        if (!blocks[i].base) {
            blocks[i] = (struct block){base, bytes, current, file, pinned, next_id++};
            standin_live_blocks++;
            break;
        }
    pthread_mutex_unlock(&lock);
    return base;
}

static int give(void *address) {
    pthread_mutex_lock(&lock);
    struct block *block = find(address);
    if (block) {
        munmap(block->base, block->bytes);
        close(block->file);
        block->base = NULL;
        standin_live_blocks--;
    }
    pthread_mutex_unlock(&lock);
    return block ? OK : INVALID;
}

static int make_file(size_t bytes) {
    int file = memfd_create("standin", MFD_CLOEXEC);
    return ftruncate(file, (off_t)bytes) ? -1 : file;
}

CALL(hipGetDeviceCount, cudaGetDeviceCount, int *count) {
    *count = standin_devices;
    DONE(hipGetDeviceCount, cudaGetDeviceCount, standin_devices ? OK : NO_DEVICE);
}
CALL(hipSetDevice, cudaSetDevice, int device) { if (device < standin_devices) current = device; DONE(hipSetDevice, cudaSetDevice, device < standin_devices ? OK : 101); }
CALL(hipGetDevice, cudaGetDevice, int *device) { *device = current; DONE(hipGetDevice, cudaGetDevice, OK); }
CALL(hipDeviceSynchronize, cudaDeviceSynchronize, void) { DONE(hipDeviceSynchronize, cudaDeviceSynchronize, OK); }
CALL(hipGetDevicePropertiesR0600, cudaGetDeviceProperties, char *properties, int device) {
    snprintf(properties, 256, "Stand-in %d", device);
    if (NAME(1, 0)) snprintf(properties + 1160, 256, "gfx942:sramecc+:xnack-");
    DONE(hipGetDevicePropertiesR0600, cudaGetDeviceProperties, OK);
}
#ifdef ROCM
// The layout before ROCm 6: whoever looks this up reads rubbish.
int hipGetDeviceProperties(char *properties, int device) { (void)device; memset(properties, 'x', 1000); return OK; }
#endif
CALL(hipDeviceGetAttribute, cudaDeviceGetAttribute, int *value, int attribute, int device) {
    (void)device;
    int known = 1;
    if (attribute == NAME(87, 10)) *value = NAME(64, 32);
    else if (attribute == NAME(63, 16)) *value = 304;
    else if (attribute == NAME(23, 75)) *value = 9;
    else if (attribute == NAME(61, 76)) *value = 0;
    else known = 0;
    DONE(hipDeviceGetAttribute, cudaDeviceGetAttribute, known ? OK : INVALID);
}
CALL(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId, char *text, int room, int device) { snprintf(text, (size_t)room, "0000:C%d:00.0", device); DONE(hipDeviceGetPCIBusId, cudaDeviceGetPCIBusId, OK); }
CALL(hipDeviceCanAccessPeer, cudaDeviceCanAccessPeer, int *can, int device, int peer) { *can = device != peer; DONE(hipDeviceCanAccessPeer, cudaDeviceCanAccessPeer, OK); }
CALL(hipDeviceEnablePeerAccess, cudaDeviceEnablePeerAccess, int peer, unsigned flags) { static int enabled[16]; DONE(hipDeviceEnablePeerAccess, cudaDeviceEnablePeerAccess, flags ? INVALID : enabled[peer]++ ? 704 : OK); }
CALL(hipRuntimeGetVersion, cudaRuntimeGetVersion, int *version) { *version = standin_runtime_version; DONE(hipRuntimeGetVersion, cudaRuntimeGetVersion, OK); }
CALL(hipDriverGetVersion, cudaDriverGetVersion, int *version) { *version = standin_runtime_version; DONE(hipDriverGetVersion, cudaDriverGetVersion, OK); }
CALL(hipGetLastError, cudaGetLastError, void) { int code = last_error; last_error = OK; return code; }
CALL(hipPeekAtLastError, cudaPeekAtLastError, void) { return last_error; }
const char *NAME(hipGetErrorName, cudaGetErrorName)(int code) { return code == OUT_OF_MEMORY ? "standinErrorOutOfMemory" : "standinError"; }
const char *NAME(hipGetErrorString, cudaGetErrorString)(int code) { (void)code; return "as the test wanted"; }
CALL(hipMalloc, cudaMalloc, void **address, size_t bytes) {
    *address = bytes > (size_t)1 << 40 ? NULL : take(bytes, 0, make_file(bytes));
    DONE(hipMalloc, cudaMalloc, *address ? OK : OUT_OF_MEMORY);
}
CALL(hipFree, cudaFree, void *address) { DONE(hipFree, cudaFree, give(address)); }
CALL(hipMemGetInfo, cudaMemGetInfo, size_t *left, size_t *total) { *left = 100; *total = 200; DONE(hipMemGetInfo, cudaMemGetInfo, OK); }
CALL(hipHostMalloc, cudaHostAlloc, void **address, size_t bytes, unsigned flags) {
    (void)flags;
    int code = fault(TEXT(NAME(hipHostMalloc, cudaHostAlloc)), OK);
    if (!code) *address = take(bytes, 1, make_file(bytes));
    return code;
}
CALL(hipHostFree, cudaFreeHost, void *address) { DONE(hipHostFree, cudaFreeHost, give(address)); }
CALL(hipHostRegister, cudaHostRegister, void *address, size_t bytes, unsigned flags) { (void)address; (void)bytes; (void)flags; standin_live_blocks++; DONE(hipHostRegister, cudaHostRegister, OK); }
CALL(hipHostUnregister, cudaHostUnregister, void *address) { (void)address; standin_live_blocks--; DONE(hipHostUnregister, cudaHostUnregister, OK); }
CALL(hipMemcpy, cudaMemcpy, void *to, const void *from, size_t bytes, int kind) { memcpy(to, from, bytes); DONE(hipMemcpy, cudaMemcpy, kind == 4 ? OK : INVALID); }
CALL(hipMemcpyAsync, cudaMemcpyAsync, void *to, const void *from, size_t bytes, int kind, void *stream) { (void)stream; memcpy(to, from, bytes); DONE(hipMemcpyAsync, cudaMemcpyAsync, kind == 4 ? OK : INVALID); }
CALL(hipMemcpyPeerAsync, cudaMemcpyPeerAsync, void *to, int there, const void *from, int here, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, from, bytes);
    DONE(hipMemcpyPeerAsync, cudaMemcpyPeerAsync, find(to)->device == there && find(from)->device == here ? OK : INVALID);
}
CALL(hipMemsetAsync, cudaMemsetAsync, void *to, int value, size_t bytes, void *stream) { (void)stream; memset(to, value, bytes); DONE(hipMemsetAsync, cudaMemsetAsync, OK); }
struct attributes { int type, device; void *device_pointer, *host_pointer; long rest[2]; };
CALL(hipPointerGetAttributes, cudaPointerGetAttributes, struct attributes *found, const void *address) {
    struct block *block = find(address);
    memset(found, 0, sizeof *found);
    if (!block) DONE(hipPointerGetAttributes, cudaPointerGetAttributes, NAME(INVALID, OK));
    int old = NAME(standin_runtime_version < 60000000, 0);
    found->type = (block->pinned ? 1 : 2) - old;
    found->device = block->device;
    DONE(hipPointerGetAttributes, cudaPointerGetAttributes, OK);
}
CALL(hipStreamCreateWithFlags, cudaStreamCreateWithFlags, void **stream, unsigned flags) { *stream = malloc(8); DONE(hipStreamCreateWithFlags, cudaStreamCreateWithFlags, flags == 1 ? OK : INVALID); }
CALL(hipStreamDestroy, cudaStreamDestroy, void *stream) { free(stream); DONE(hipStreamDestroy, cudaStreamDestroy, OK); }
CALL(hipStreamSynchronize, cudaStreamSynchronize, void *stream) { (void)stream; DONE(hipStreamSynchronize, cudaStreamSynchronize, OK); }
CALL(hipStreamQuery, cudaStreamQuery, void *stream) { (void)stream; DONE(hipStreamQuery, cudaStreamQuery, standin_held ? NOT_READY : OK); }
CALL(hipStreamWaitEvent, cudaStreamWaitEvent, void *stream, void *event, unsigned flags) { (void)stream; (void)event; DONE(hipStreamWaitEvent, cudaStreamWaitEvent, flags ? INVALID : OK); }
CALL(hipLaunchHostFunc, cudaLaunchHostFunc, void *stream, void (*function)(void *), void *data) {
    (void)stream;
    int code = fault(TEXT(NAME(hipLaunchHostFunc, cudaLaunchHostFunc)), OK);
    if (!code) function(data);
    return code;
}
CALL(hipEventCreateWithFlags, cudaEventCreateWithFlags, void **event, unsigned flags) { (void)flags; *event = malloc(8); DONE(hipEventCreateWithFlags, cudaEventCreateWithFlags, OK); }
CALL(hipEventDestroy, cudaEventDestroy, void *event) { free(event); DONE(hipEventDestroy, cudaEventDestroy, OK); }
CALL(hipEventRecord, cudaEventRecord, void *event, void *stream) { (void)event; (void)stream; DONE(hipEventRecord, cudaEventRecord, OK); }
CALL(hipEventQuery, cudaEventQuery, void *event) { (void)event; DONE(hipEventQuery, cudaEventQuery, standin_held ? NOT_READY : OK); }
CALL(hipEventSynchronize, cudaEventSynchronize, void *event) { (void)event; standin_held = 0; DONE(hipEventSynchronize, cudaEventSynchronize, OK); }
struct handle { char bytes[64]; };
CALL(hipIpcGetMemHandle, cudaIpcGetMemHandle, struct handle *handle, void *address) {
    struct block *block = find(address);
    if (block) snprintf(handle->bytes, 64, "%d %d %zu", getpid(), block->file, block->bytes);
    DONE(hipIpcGetMemHandle, cudaIpcGetMemHandle, block && block->base == address ? OK : INVALID);
}
CALL(hipIpcOpenMemHandle, cudaIpcOpenMemHandle, void **address, struct handle handle, unsigned flags) {
    int pid, file;
    size_t bytes;
    if (sscanf(handle.bytes, "%d %d %zu", &pid, &file, &bytes) != 3 || flags != 1) DONE(hipIpcOpenMemHandle, cudaIpcOpenMemHandle, INVALID);
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, file);
    *address = take(bytes, 0, open(path, O_RDWR));
    DONE(hipIpcOpenMemHandle, cudaIpcOpenMemHandle, *address ? OK : INVALID);
}
CALL(hipIpcCloseMemHandle, cudaIpcCloseMemHandle, void *address) { DONE(hipIpcCloseMemHandle, cudaIpcCloseMemHandle, give(address)); }

#if defined(ROCM) || defined(DRIVER)
CALL(hipDeviceGet, cuDeviceGet, int *handle, int device) { *handle = device; DONE(hipDeviceGet, cuDeviceGet, OK); }
CALL(hipDeviceGetUuid, cuDeviceGetUuid_v2, char *uuid, int device) { memset(uuid, 'a' + device, 16); DONE(hipDeviceGetUuid, cuDeviceGetUuid_v2, OK); }
CALL(hipDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, int device, unsigned *flags, int *active) { (void)device; *flags = 0; *active = standin_context; DONE(hipDevicePrimaryCtxGetState, cuDevicePrimaryCtxGetState, OK); }
CALL(hipDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, void **context, int device) { (void)device; standin_retained++; *context = &blocks; DONE(hipDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain, OK); }
CALL(hipDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, int device) { (void)device; standin_retained--; DONE(hipDevicePrimaryCtxRelease, cuDevicePrimaryCtxRelease_v2, OK); }
CALL(hipCtxGetCurrent, cuCtxGetCurrent, void **context) { *context = NULL; DONE(hipCtxGetCurrent, cuCtxGetCurrent, OK); }
CALL(hipCtxSetCurrent, cuCtxSetCurrent, void *context) { (void)context; DONE(hipCtxSetCurrent, cuCtxSetCurrent, OK); }
CALL(hipPointerGetAttribute, cuPointerGetAttribute, uint64_t *value, int attribute, void *address) { *value = find(address) ? find(address)->id : 0; DONE(hipPointerGetAttribute, cuPointerGetAttribute, attribute == 7 ? OK : INVALID); }
CALL(hipMemGetAddressRange, cuMemGetAddressRange_v2, void **base, size_t *bytes, void *address) {
    struct block *block = find(address);
    if (!block) DONE(hipMemGetAddressRange, cuMemGetAddressRange_v2, NOT_FOUND);
    *base = block->base;
    *bytes = block->bytes;
    DONE(hipMemGetAddressRange, cuMemGetAddressRange_v2, OK);
}
#ifndef WITHOUT_RANGE_HANDLE
CALL(hipMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, int *file, void *address, size_t bytes, int type, unsigned long long flags) {
    struct block *block = find(address);
    if (!block || bytes != block->bytes || type != 1 || flags) DONE(hipMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, INVALID);
    *file = dup(block->file);
    DONE(hipMemGetHandleForAddressRange, cuMemGetHandleForAddressRange, OK);
}
#endif
struct properties { int type, handle_types, location, device; void *meta; unsigned char flags[8]; };
struct physical { int file; size_t bytes; };
static int good(const struct properties *p) { return p->type == 1 && p->handle_types == 1 && p->location == 1 && p->flags[1] == 1; }
CALL(hipMemGetAllocationGranularity, cuMemGetAllocationGranularity, size_t *bytes, const struct properties *p, int option) { *bytes = 1 << 16; DONE(hipMemGetAllocationGranularity, cuMemGetAllocationGranularity, good(p) && option == 1 ? OK : INVALID); }
CALL(hipMemCreate, cuMemCreate, struct physical **handle, size_t bytes, const struct properties *p, unsigned long long flags) {
    *handle = malloc(sizeof **handle);
    **handle = (struct physical){make_file(bytes), bytes};
    DONE(hipMemCreate, cuMemCreate, good(p) && !flags && bytes % (1 << 16) == 0 ? OK : INVALID);
}
CALL(hipMemRelease, cuMemRelease, struct physical *handle) { close(handle->file); free(handle); DONE(hipMemRelease, cuMemRelease, OK); }
CALL(hipMemExportToShareableHandle, cuMemExportToShareableHandle, int *file, struct physical *handle, int type, unsigned long long flags) { *file = dup(handle->file); DONE(hipMemExportToShareableHandle, cuMemExportToShareableHandle, type == 1 && !flags ? OK : INVALID); }
CALL(hipMemImportFromShareableHandle, cuMemImportFromShareableHandle, struct physical **handle, void *file, int type) {
    int number = NAME(standin_runtime_version < 70100000, 0) ? *(int *)file : (int)(intptr_t)file;
    *handle = malloc(sizeof **handle);
    **handle = (struct physical){dup(number), (size_t)lseek(number, 0, SEEK_END)};
    DONE(hipMemImportFromShareableHandle, cuMemImportFromShareableHandle, type == 1 ? OK : INVALID);
}
CALL(hipMemAddressReserve, cuMemAddressReserve, void **address, size_t bytes, size_t alignment, void *wish, unsigned long long flags) {
    (void)alignment; (void)wish; (void)flags;
    *address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    standin_live_blocks++;
    DONE(hipMemAddressReserve, cuMemAddressReserve, OK);
}
CALL(hipMemAddressFree, cuMemAddressFree, void *address, size_t bytes) { munmap(address, bytes); standin_live_blocks--; DONE(hipMemAddressFree, cuMemAddressFree, OK); }
CALL(hipMemMap, cuMemMap, void *address, size_t bytes, size_t offset, struct physical *handle, unsigned long long flags) {
    (void)flags;
    mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, handle->file, (off_t)offset);
    standin_live_blocks++;
    DONE(hipMemMap, cuMemMap, OK);
}
CALL(hipMemUnmap, cuMemUnmap, void *address, size_t bytes) { mmap(address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0); standin_live_blocks--; DONE(hipMemUnmap, cuMemUnmap, OK); }
struct access { int type, id, flags; };
CALL(hipMemSetAccess, cuMemSetAccess, void *address, size_t bytes, const struct access *access, size_t count) { (void)address; (void)bytes; DONE(hipMemSetAccess, cuMemSetAccess, count == 1 && access->type == 1 && access->flags == 3 ? OK : INVALID); }
CALL(hipStreamWriteValue32, cuStreamWriteValue32_v2, void *stream, uint32_t *address, uint32_t value, unsigned flags) { (void)stream; (void)flags; *address = value; DONE(hipStreamWriteValue32, cuStreamWriteValue32_v2, OK); }
#ifdef ROCM
int hipStreamWaitValue32(void *stream, uint32_t *address, uint32_t value, unsigned flags, uint32_t mask) { (void)stream; standin_mask = mask; DONE(hipStreamWaitValue32, , flags == 0 && *address >= value ? OK : NOT_READY); }
#else
int cuStreamWaitValue32_v2(void *stream, uint32_t *address, uint32_t value, unsigned flags) { (void)stream; DONE(, cuStreamWaitValue32_v2, flags == 0 && *address >= value ? OK : NOT_READY); }
#endif
// A module is anything that begins like code. It has a kernel that adds a number to as many as there are threads, and all of
// Roost's, once the test has given the library that these were compiled into for the host.
_Bool (*standin_kernels)(const char *name, uint32_t grid, uint32_t threads, uint32_t first, uint32_t end, void **arguments);
CALL(hipModuleUnload, cuModuleUnload, void *module) { free(module); DONE(hipModuleUnload, cuModuleUnload, OK); }
CALL(hipModuleLoadData, cuModuleLoadData, void **module, const char *image) { *module = strdup(image); DONE(hipModuleLoadData, cuModuleLoadData, memcmp(image, "code", 4) && memcmp(image, "\177ELF", 4) ? 200 : OK); }
CALL(hipModuleGetFunction, cuModuleGetFunction, void **function, void *module, const char *name) { (void)module; *function = strdup(name); DONE(hipModuleGetFunction, cuModuleGetFunction, strcmp(name, "add") && !strstr(name, "roost_") ? NOT_FOUND : OK); }
CALL(hipFuncGetAttribute, cuFuncGetAttribute, int *value, int attribute, void *function) { (void)function; *value = attribute; DONE(hipFuncGetAttribute, cuFuncGetAttribute, OK); }
CALL(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, int *blocks_there, void *function, int threads, size_t shared) { (void)function; *blocks_there = 2048 / threads + (int)shared; DONE(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor, cuOccupancyMaxActiveBlocksPerMultiprocessor, OK); }
CALL(hipModuleLaunchKernel, cuLaunchKernel, void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
    (void)stream;
    int plain = gy == 1 && gz == 1 && by == 1 && bz == 1 && shared == 0 && !extra;
    if (plain && strcmp(function, "add")) DONE(hipModuleLaunchKernel, cuLaunchKernel, standin_kernels && standin_kernels(function, gx, bx, 0, gx, arguments) ? OK : NOT_FOUND);
    uint32_t *to = *(uint32_t **)arguments[0];
    for (unsigned i = 0; plain && i < gx * bx; i++) to[i] += *(uint32_t *)arguments[1];
    DONE(hipModuleLaunchKernel, cuLaunchKernel, plain ? OK : INVALID);
}
#endif
