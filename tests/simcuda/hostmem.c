// Host memory that devices can reach: the driver allocates it, or the program registers it with the driver.
#include "sim.h"

#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>

static uint32_t every_device(void) { return (1u << config.devices) - 1; }

static CUresult allocate(void **out, size_t size, unsigned flags, enum range_kind kind) {
    if (!out || !size || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    size_t mapped = (size + 4095) / 4096 * 4096;
    void *at = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
    LOCK();
    struct range g = {
        .start = (uint64_t)at, .size = size, .kind = kind, .memory = at, .device = -1,
        .readable = every_device(), .writable = every_device(), .flags = flags, .ctx = ctx_current(),
        .block_size = mapped,
    };
    range_add(&g);
    counts_live(LIVE_HOST_ALLOC, 1);
    UNLOCK();
    *out = at;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
    ENTER(cuMemHostAlloc, NEED_CTX);
    return allocate(out, size, flags, RANGE_HOST_ALLOC);
}

SIM_API CUresult cuMemAllocHost_v2(void **out, size_t size) {
    ENTER(cuMemAllocHost, NEED_CTX);
    return allocate(out, size, 0, RANGE_HOST_ALLOC);
}

// Managed memory is memory of the CPU, which every device reaches at the same address.
SIM_API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags) {
    ENTER(cuMemAllocManaged, NEED_CTX);
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST) return CUDA_ERROR_INVALID_VALUE;
    void *at = NULL;
    CUresult r = allocate(out ? &at : NULL, size, 0, RANGE_MANAGED);
    if (r == CUDA_SUCCESS) *out = (CUdeviceptr)at;
    return r;
}

bool host_free(uint64_t address, enum range_kind kind) {
    struct range *g = range_find(address);
    if (!g || g->start != address || g->kind != kind) return false;
    ctx_wait_idle(g->ctx && g->ctx->alive ? g->ctx : ctx_current());
    g = range_find(address);
    if (!g || g->start != address || g->kind != kind) return false; // another thread freed the memory meanwhile
    size_t size = g->block_size;
    range_remove(g);
    munmap((void *)address, size);
    counts_live(LIVE_HOST_ALLOC, -1);
    return true;
}

SIM_API CUresult cuMemFreeHost(void *p) {
    ENTER(cuMemFreeHost, NEED_CTX);
    LOCK();
    bool ours = host_free((uint64_t)p, RANGE_HOST_ALLOC);
    UNLOCK();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// Returns what this process itself can do with the memory: 0: nothing; 1: read; 3: read and write.
static int rights(uint64_t start, size_t size) {
    FILE *maps = fopen("/proc/self/maps", "re");
    if (!maps) return 3;
    int all = 3;
    uint64_t at = start, from, to;
    char line[512], r, w;
    while (at < start + size && fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %c%c", &from, &to, &r, &w) != 4 || to <= at) continue;
        if (from > at || r != 'r') break;
        if (w != 'w') all = 1;
        at = to;
    }
    fclose(maps);
    return at >= start + size ? all : 0;
}

SIM_API CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned int flags) {
    ENTER(cuMemHostRegister, NEED_CTX);
    if (!p || !size || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    if (flags & CU_MEMHOSTREGISTER_IOMEMORY) return CUDA_ERROR_NOT_SUPPORTED;
    uint64_t start = (uint64_t)p;
    bool read_only = flags & CU_MEMHOSTREGISTER_READ_ONLY;
    int may = rights(start, size);
    if (may == 0 || (may == 1 && !read_only)) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult r = CUDA_SUCCESS;
    struct range *there = range_overlap(start, size);
    if (there) r = there->kind == RANGE_HOST_REGISTERED ? CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        struct range g = {
            .start = start, .size = size, .kind = RANGE_HOST_REGISTERED, .memory = p, .device = -1,
            .readable = every_device(), .writable = read_only ? 0 : every_device(), .flags = flags,
            .ctx = ctx_current(), .block_size = size, .backing = backing_of_host(start, size),
        };
        if (g.backing) g.memory = g.backing->data;
        range_add(&g);
        counts_live(LIVE_HOST_REGISTERED, 1);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemHostUnregister(void *p) {
    ENTER(cuMemHostUnregister, NEED_CTX);
    LOCK();
    struct range *g = range_find((uint64_t)p);
    CUresult r = g ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    if (g && g->start == (uint64_t)p && g->kind == RANGE_HOST_REGISTERED) {
        // Measured: this call waits for the work of the context, even in non-blocking streams.
        ctx_wait_idle(g->ctx && g->ctx->alive ? g->ctx : ctx_current());
        g = range_find((uint64_t)p);
    }
    if (g && g->start == (uint64_t)p && g->kind == RANGE_HOST_REGISTERED) {
        r = CUDA_SUCCESS;
        if (g->backing) backing_unref(g->backing);
        range_remove(g);
        counts_live(LIVE_HOST_REGISTERED, -1);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags) {
    ENTER(cuMemHostGetDevicePointer, NEED_CTX);
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find((uint64_t)p);
    bool mapped = g && (g->kind == RANGE_HOST_ALLOC || g->kind == RANGE_HOST_REGISTERED);
    UNLOCK();
    if (!mapped) return CUDA_ERROR_INVALID_VALUE;
    *out = (CUdeviceptr)p;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemHostGetFlags(unsigned int *out, void *p) {
    ENTER(cuMemHostGetFlags, NEED_CTX);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find((uint64_t)p);
    bool ours = g && (g->kind == RANGE_HOST_ALLOC || g->kind == RANGE_HOST_REGISTERED);
    if (ours) *out = g->flags | 2; // with unified addressing, all of this memory is mapped
    UNLOCK();
    return ours ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
