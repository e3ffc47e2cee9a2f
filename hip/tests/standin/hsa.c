// A stand-in for libhsa-runtime64: a dma-buf that begins before the memory it was asked for.
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/mman.h>

int hsa_amd_portable_export_dmabuf(const void *address, unsigned long bytes, int *file, uint64_t *offset) {
    (void)address;
    *offset = 4096;
    *file = memfd_create("hsa", MFD_CLOEXEC);
    return bytes == 1 << 20 ? 0x1001 : 0;
}
