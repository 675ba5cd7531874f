// Allocates memory from pools, and frees it in stream order.
#include "pool.h"

#include <stdlib.h>

enum { GRAIN = 512 };

static void nothing(struct stream *s, struct op *op) { (void)s, (void)op; }

CUresult pool_alloc(CUdeviceptr *out, size_t size, struct pool *p, struct stream *s) {
    if (p->imported) return CUDA_ERROR_INVALID_VALUE; // measured: an importer cannot allocate from a pool
    if (!size) {
        *out = 0; // measured: for 0 bytes the driver returns a null pointer, which a program can free
        return CUDA_SUCCESS;
    }
    uint64_t rounded = (size + GRAIN - 1) / GRAIN * GRAIN, offset;
    if (rounded < size) return CUDA_ERROR_OUT_OF_MEMORY;
    struct op *wait;
    CUresult r = span_take(p, rounded, size, &offset, &wait);
    if (r != CUDA_SUCCESS) return r;
    if (wait) {
        wait->run = nothing;
        stream_submit(s, wait);
    }
    // Removes old allocations at this address that were freed in stream order, so that a program cannot use them any more.
    for (struct range *old; (old = range_overlap(p->va + offset, rounded)) != NULL;) range_remove(old);
    struct range g = {
        .start = p->va + offset, .size = size, .kind = RANGE_POOL, .backing = p->backing, .offset = offset,
        .memory = p->backing->data + offset, .device = p->device, .readable = p->readable, .writable = p->writable,
        .ctx = s->ctx, .pool = p, .block_size = rounded,
    };
    range_add(&g);
    p->pointers++;
    p->mapped_now++;
    counts_live(LIVE_POINTER, 1);
    *out = g.start;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream stream) {
    ENTER(cuMemAllocFromPoolAsync, NEED_INIT);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct pool *p;
    struct stream *s;
    CUresult r = pool_get(pool, &p);
    if (r == CUDA_SUCCESS) r = stream_get(stream, &s);
    if (r == CUDA_SUCCESS) r = pool_alloc(out, size, p, s);
    UNLOCK();
    return r;
}

struct freeing { uint64_t start, serial; struct pool *pool; struct stream *stream; };

static void free_over(struct op *op) {
    struct freeing *f = (struct freeing *)op->body;
    struct range *r = range_find(f->start);
    // A newer allocation, in a stream that waits for this stream, may already have the memory. Then the range of the newer one stays.
    if (r && r->freed && r->serial == f->serial && r->pool == f->pool) range_remove(r);
    if (!f->pool->imported) span_settle(f->pool, f->stream, op->seq);
    pool_unref_pointer(f->pool);
    stream_unref(f->stream);
}

static void forget(struct range *r) {
    struct claim *claims = r->backing->header->tables->claims;
    if (r->pool->imported) {
        claim_remove(claims, r->claim);
        return;
    }
    int other = claim_other(claims, r->offset, r->size);
    if (other) {
        misuse_report("free-while-mapped", "freed %#llx (%llu bytes) while process %d has it mapped",
                      (unsigned long long)r->start, (unsigned long long)r->size, other);
    }
}

CUresult pool_free_pointer(struct range *r, struct stream *s) {
    struct pool *p = r->pool;
    forget(r);
    counts_live(p->imported ? LIVE_POINTER_IMPORT : LIVE_POINTER, -1);
    misuse_freed(r->start, r->size);
    r->freed = true;
    p->mapped_now--;
    if (!s) {
        if (!p->imported) span_free(p, r->offset, NULL, 0);
        range_remove(r);
        pool_unref_pointer(p);
        return CUDA_SUCCESS;
    }
    struct op *op = op_new(sizeof(struct freeing), nothing);
    *(struct freeing *)op->body = (struct freeing){r->start, r->serial, p, s};
    op->drop = free_over;
    stream_ref(s);
    if (!p->imported) span_free(p, r->offset, s, s->queued + 1);
    stream_submit(s, op);
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    ENTER(cuMemFreeAsync, NEED_INIT);
    if (!address) return CUDA_SUCCESS;
    LOCK();
    struct stream *s;
    CUresult r = stream_get(stream, &s);
    if (r == CUDA_SUCCESS) {
        struct range *g = range_find(address);
        if (g && g->start == address && !g->freed && g->kind == RANGE_POOL) {
            r = pool_free_pointer(g, s);
        } else if (g && g->start == address && !g->freed && g->kind == RANGE_LINEAR) {
            linear_free_async(g, s); // measured: a program may free plain memory with this call too
        } else {
            misuse_address("cuMemFreeAsync", address);
            r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    UNLOCK();
    return r;
}
