// Legacy handles (cuIpcGetMemHandle). A handle names a block by a process and a descriptor of this process. So, like a
// real handle, the handle works only while the process that made it lives.
#include "sim.h"
#include "slab.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
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

// A block that is open in a context. Its allocations have the same offsets in the block as in the owner's process
// (measured).
struct block {
    struct block *next;
    struct backing *backing;
    struct context *ctx;
    uint64_t va;
    int opened; // number of open allocations of the block
};
static struct block *blocks;

static bool names(const struct handle_bytes *b, const struct block *block, struct context *ctx) {
    return block->ctx == ctx && block->backing->header->cookie == b->cookie && block->backing->capacity == b->block_size;
}

static bool block_open(const struct handle_bytes *b, struct context *ctx) {
    struct block *block = blocks;
    while (block && !names(b, block, ctx)) block = block->next;
    return block != NULL;
}

// Returns the open block of a handle. Skips a block of this process that still maps an older allocation of the owner: the
// owner has freed the older allocation, and the allocation of the handle has its address.
static struct block *block_find(const struct handle_bytes *b, struct context *ctx) {
    for (struct block *block = blocks; block; block = block->next) {
        if (!names(b, block, ctx)) continue;
        struct range *there = range_overlap(block->va + b->offset, b->size);
        if (!there || (there->offset == b->offset && there->size == b->size)) return block;
    }
    return NULL;
}

static CUresult block_make(const struct handle_bytes *b, struct context *ctx, struct block **out) {
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", b->pid, b->fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return CUDA_ERROR_INVALID_HANDLE;
    struct backing *backing;
    CUresult r = backing_import(fd, MEMORY_LINEAR, &backing);
    close(fd);
    if (r != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if (backing->header->cookie != b->cookie || backing->capacity != b->block_size) r = CUDA_ERROR_INVALID_HANDLE;
    else if (backing->device != ctx->device && !config.peer) r = CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    uint64_t va = 0;
    if (r == CUDA_SUCCESS) {
        va = va_reserve(b->block_size, 2 * MIB, 0);
        if (!va || !va_expose(va, backing, 0, b->block_size)) r = CUDA_ERROR_MAP_FAILED;
    }
    if (r != CUDA_SUCCESS) {
        backing_unref(backing);
        return r;
    }
    struct block *block = malloc(sizeof *block);
    if (!block) abort();
    *block = (struct block){blocks, backing, ctx, va, 0};
    blocks = *out = block;
    importer_add(backing->header->importer);
    return CUDA_SUCCESS;
}

static void block_drop(struct block *block) {
    struct block **link = &blocks;
    while (*link != block) link = &(*link)->next;
    *link = block->next;
    importer_remove(block->backing->header->importer);
    va_release(block->va, block->backing->capacity);
    backing_unref(block->backing);
    free(block);
}

static CUresult open_handle(const struct handle_bytes *b, struct context *ctx, CUdeviceptr *out) {
    if (b->offset > b->block_size || b->size > b->block_size - b->offset) return CUDA_ERROR_INVALID_HANDLE;
    struct block *block = block_find(b, ctx);
    CUresult r = block ? CUDA_SUCCESS : block_make(b, ctx, &block);
    if (r != CUDA_SUCCESS) return r;
    *out = block->va + b->offset;
    struct range *g = range_find(*out);
    if (!g) {
        uint32_t every = (1u << config.devices) - 1;
        g = range_add(&(struct range){
            .start = *out, .size = b->size, .kind = RANGE_IPC, .backing = block->backing, .offset = b->offset,
            .memory = block->backing->data + b->offset, .device = block->backing->device, .readable = every,
            .writable = every, .ctx = ctx, .owner = block, .block_size = b->block_size,
        });
        block->opened++;
        counts_live(LIVE_IPC, 1);
    }
    g->opens++;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags) {
    ENTER(cuIpcOpenMemHandle, NEED_CTX);
    if (!out || flags != 1) return CUDA_ERROR_INVALID_VALUE; // measured: the driver refuses every call without the lazy flag
    static const uint64_t zero[2];
    struct handle_bytes b;
    memcpy(&b, &handle, sizeof b);
    if (memcmp(b.magic, magic, sizeof magic) != 0 || memcmp(b.zero, zero, sizeof zero) != 0 || !b.size) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (b.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; // the process that exported the handle cannot open it
    struct context *ctx = ctx_current();
    LOCK();
    // Measured: a handle opens in a second context only if no allocation of its block is open in the primary context.
    bool elsewhere = !ctx->primary && block_open(&b, ctx_primary(ctx->device));
    CUresult r = elsewhere ? CUDA_ERROR_INVALID_HANDLE : CUDA_SUCCESS;
    if (r == CUDA_SUCCESS) r = open_handle(&b, ctx, out);
    UNLOCK();
    return r;
}

void ipc_close(struct range *g) {
    struct block *block = g->owner;
    range_remove(g);
    counts_live(LIVE_IPC, -1);
    if (--block->opened == 0) block_drop(block);
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
