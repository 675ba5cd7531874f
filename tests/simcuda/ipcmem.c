// Legacy handles (cuIpcGetMemHandle). They name a block by process and descriptor, so that, as with the real ones,
// they work only while the process that made them lives.
#include "sim.h"
#include "slab.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

struct handle_bytes {
    char magic[8];
    uint64_t cookie, offset, size, block_size;
    int32_t pid, fd;
    uint64_t zero[2];
};
_Static_assert(sizeof(struct handle_bytes) == sizeof(CUipcMemHandle), "memory handle");
static const char magic[8] = "simipcm";

SIM_API CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
    ENTER(cuIpcGetMemHandle, NEED_CTX);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find(address);
    CUresult r = g && g->kind == RANGE_LINEAR ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        struct slab *slab = g->owner;
        struct handle_bytes b = {.cookie = slab->backing->header->cookie, .offset = g->offset, .size = g->size,
                                 .block_size = slab->size, .pid = getpid(), .fd = slab->backing->fd};
        memcpy(b.magic, magic, sizeof magic);
        memcpy(out, &b, sizeof b);
    } else {
        misuse_address("cuIpcGetMemHandle", address);
    }
    UNLOCK();
    return r;
}

static struct range *opened(const struct handle_bytes *b, struct context *ctx) {
    for (struct range *g = range_first(); g; g = range_next(g)) {
        bool same = g->kind == RANGE_IPC && g->ctx == ctx && g->backing->header->cookie == b->cookie;
        if (same && g->offset == b->offset && g->size == b->size) return g;
    }
    return NULL;
}

// Whether an allocation of that block is open in the context.
static bool block_open(const struct handle_bytes *b, struct context *ctx) {
    for (struct range *g = range_first(); g; g = range_next(g)) {
        if (g->kind == RANGE_IPC && g->ctx == ctx && g->backing->header->cookie == b->cookie) return true;
    }
    return false;
}

static CUresult open_block(const struct handle_bytes *b, struct context *ctx, CUdeviceptr *out) {
    struct range *known = opened(b, ctx);
    if (known) {
        known->opens++;
        *out = known->start;
        return CUDA_SUCCESS;
    }
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", b->pid, b->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
    struct backing *backing;
    CUresult r = backing_import(fd, MEMORY_LINEAR, &backing);
    close(fd);
    if (r != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (backing->header->cookie != b->cookie || backing->capacity != b->block_size ||
        b->offset > b->block_size || b->size > b->block_size - b->offset) {
        backing_unref(backing);
        return CUDA_ERROR_INVALID_HANDLE;
    }
    if (backing->device != ctx->device && !config.peer) {
        backing_unref(backing);
        return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    }
    uint64_t va = va_reserve(b->block_size, 2 * MIB, 0);
    if (!va || !va_expose(va, backing, 0, b->block_size)) {
        backing_unref(backing);
        return CUDA_ERROR_MAP_FAILED;
    }
    uint32_t every = (1u << config.devices) - 1;
    struct range g = {
        .start = va + b->offset, .size = b->size, .kind = RANGE_IPC, .backing = backing, .offset = b->offset,
        .memory = backing->data + b->offset, .device = backing->device, .readable = every, .writable = every,
        .ctx = ctx, .block_size = b->block_size, .opens = 1,
    };
    range_add(&g);
    importer_add(backing->header->importer);
    counts_live(LIVE_IPC, 1);
    *out = g.start;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
    ENTER(cuIpcOpenMemHandle, NEED_CTX);
    if (!out || flags != 1) return CUDA_ERROR_INVALID_VALUE; // measured: without the lazy flag, never
    static const uint64_t zero[2];
    struct handle_bytes b;
    memcpy(&b, &handle, sizeof b);
    if (memcmp(b.magic, magic, sizeof magic) != 0 || memcmp(b.zero, zero, sizeof zero) != 0 || !b.size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (b.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; // not in the process that exported it
    struct context *ctx = ctx_current();
    LOCK();
    // Measured: in a second context if nothing is open in the primary one, and not if another allocation of the block is.
    bool elsewhere = !ctx->primary && block_open(&b, ctx_primary(ctx->device));
    CUresult r = elsewhere ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS) r = open_block(&b, ctx, out);
    UNLOCK();
    return r;
}

void ipc_close(struct range *g) {
    struct backing *backing = g->backing;
    uint64_t va = g->start - g->offset, size = g->block_size;
    importer_remove(backing->header->importer);
    range_remove(g);
    va_release(va, size);
    backing_unref(backing);
    counts_live(LIVE_IPC, -1);
}

SIM_API CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
    ENTER(cuIpcCloseMemHandle, NEED_CTX);
    LOCK();
    struct range *g = range_find(address);
    CUresult r = g && g->kind == RANGE_IPC && g->start == address ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (r != CUDA_SUCCESS) misuse_address("cuIpcCloseMemHandle", address);
    else if (--g->opens == 0) ipc_close(g);
    UNLOCK();
    return r;
}
