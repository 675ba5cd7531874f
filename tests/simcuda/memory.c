// Plain device memory (cuMemAlloc). Small allocations share slabs, as they share blocks on a real device.
#include "sim.h"
#include "slab.h"

#include <stdlib.h>
#include <string.h>

enum { GRAIN = 512 };

static struct slab *slabs;

static CUresult slab_make(struct context *ctx, uint64_t size, struct slab **out) {
    if (!usage_take(ctx->device, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    struct slab *s = calloc(1, sizeof *s);
    if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = backing_create(MEMORY_LINEAR, ctx->device, false, size, &s->backing);
    if (r != CUDA_SUCCESS) {
        free(s);
        return r;
    }
    s->backing->header->reserved = size;
    s->va = va_reserve(size, 2 * MIB, 0);
    if (!s->va || !va_expose(s->va, s->backing, 0, size)) abort();
    s->size = size;
    s->ctx = ctx;
    s->next = slabs;
    slabs = s;
    *out = s;
    return CUDA_SUCCESS;
}

static void slab_drop(struct slab *slab) {
    for (struct slab **link = &slabs; *link; link = &(*link)->next) {
        if (*link != slab) continue;
        *link = slab->next;
        break;
    }
    va_release(slab->va, slab->size);
    slab->backing->header->reserved = 0;
    backing_unref(slab->backing);
    free(slab);
}

static bool room_in(struct slab *s, uint64_t size, uint64_t *offset) {
    uint64_t at = 0;
    for (struct range *g = range_overlap(s->va, s->size); g && g->start < s->va + s->size; g = range_next(g)) {
        if (g->start - s->va - at >= size) break;
        at = (g->start - s->va + g->size + GRAIN - 1) / GRAIN * GRAIN;
    }
    *offset = at;
    return at + size <= s->size;
}

static CUresult allocate(struct context *ctx, uint64_t size, CUdeviceptr *out) {
    uint64_t offset = 0;
    struct slab *slab = NULL;
    if (size <= MIB) {
        for (slab = slabs; slab; slab = slab->next) {
            if (slab->ctx == ctx && slab->size == 2 * MIB && room_in(slab, size, &offset)) break;
        }
    }
    if (!slab) {
        CUresult r = slab_make(ctx, (size + 2 * MIB - 1) / (2 * MIB) * (2 * MIB), &slab);
        if (r != CUDA_SUCCESS) return r;
        offset = 0;
    }
    uint32_t every = config.devices >= 32 ? ~0u : (1u << config.devices) - 1;
    struct range g = {
        .start = slab->va + offset, .size = size, .kind = RANGE_LINEAR, .backing = slab->backing, .offset = offset,
        .memory = slab->backing->data + offset, .device = ctx->device, .readable = every, .writable = every,
        .ctx = ctx, .owner = slab, .block_size = slab->size,
    };
    range_add(&g);
    slab->used++;
    counts_live(LIVE_LINEAR, 1);
    *out = g.start;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    ENTER(cuMemAlloc, NEED_CTX);
    if (!out || !size) return CUDA_ERROR_INVALID_VALUE;
    if (size > config.memory) return CUDA_ERROR_OUT_OF_MEMORY;
    LOCK();
    CUresult r = allocate(ctx_current(), size, out);
    UNLOCK();
    return r;
}

static void release(struct range *g) {
    struct slab *slab = g->owner;
    int other = importer_other(slab->backing->header->importer);
    if (other) {
        misuse_report("free-while-mapped", "freed %#llx (%llu bytes) while process %d has its block mapped",
                      (unsigned long long)g->start, (unsigned long long)g->size, other);
    }
    range_remove(g);
    counts_live(LIVE_LINEAR, -1);
    if (--slab->used == 0) slab_drop(slab);
}

struct freeing { uint64_t start, serial; };

static void nothing(struct stream *s, struct op *op) { (void)s, (void)op; }

static void free_over(struct op *op) {
    struct freeing *f = (struct freeing *)op->body;
    struct range *g = range_find(f->start);
    if (g && g->serial == f->serial) release(g);
}

void linear_free_async(struct range *g, struct stream *s) {
    struct op *op = op_new(sizeof(struct freeing), nothing);
    *(struct freeing *)op->body = (struct freeing){g->start, g->serial};
    op->drop = free_over;
    misuse_freed(g->start, g->size);
    g->freed = true;
    stream_submit(s, op);
}

void linear_free_context(struct context *ctx) {
    for (struct range *g = range_first(), *next; g; g = next) {
        next = range_next(g);
        if (g->kind == RANGE_LINEAR && g->ctx == ctx) release(g);
        else if (g->kind == RANGE_IPC && g->ctx == ctx) ipc_close(g);
    }
}

SIM_API CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER(cuMemFree, address ? NEED_CTX : NEED_INIT);
    if (!address) return CUDA_SUCCESS;
    LOCK();
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct range *g = range_find(address);
    bool whole = g && g->start == address && !g->freed;
    if (whole && g->kind == RANGE_POOL) {
        r = pool_free_pointer(g, NULL); // measured: the driver does not wait for anything here
    } else if (whole && g->kind == RANGE_LINEAR) {
        // Measured: the driver waits for the work of the context before it frees plain memory.
        ctx_wait_idle(g->ctx);
        g = range_find(address);
        r = g && g->start == address && g->kind == RANGE_LINEAR ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        if (r == CUDA_SUCCESS) release(g);
    } else if (whole && host_free(address, RANGE_MANAGED)) {
        r = CUDA_SUCCESS;
    }
    if (r != CUDA_SUCCESS) misuse_address("cuMemFree", address);
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    ENTER(cuMemGetInfo, NEED_CTX);
    if (!available || !total) return CUDA_ERROR_INVALID_VALUE;
    uint64_t taken = usage_of_device(ctx_current()->device);
    *total = config.memory;
    *available = taken < config.memory ? config.memory - taken : 0;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr address) {
    ENTER(cuMemGetAddressRange, NEED_CTX);
    LOCK();
    struct range *g = range_find(address);
    bool known = g && !g->freed;
    // Measured: this call finds memory that was opened with a legacy handle only in the context in which it was opened.
    if (known && g->kind == RANGE_IPC && g->ctx != ctx_current()) known = false;
    if (known && base) *base = g->start;
    if (known && size) *size = g->size;
    if (!g || g->freed) misuse_address("cuMemGetAddressRange", address);
    UNLOCK();
    return known ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}
