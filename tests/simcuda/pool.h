// Memory pools: the interface of the files that make pools, allocate from them and share them.
#ifndef SIMCUDA_POOL_H
#define SIMCUDA_POOL_H

#include "sim.h"

#define CHUNK (32 * MIB) // a pool takes memory from its device in pieces of this size (measured)

// A part of the pool. The part is allocated, or it was freed in stream order. A part that was freed in stream order becomes free when
// the stream freed_on reaches freed_at.
struct span {
    struct span *next;
    uint64_t offset, size, asked;
    struct stream *freed_on;
    uint64_t freed_at;
};

struct pool {
    void *handle;
    struct backing *backing;
    int device; // -1: the host
    bool imported, is_default, destroyed, exported;
    int imports; // how many times this process has imported the pool
    int alloc_type, handle_types;
    CUmemLocation location;
    uint64_t va, threshold;
    int reuse[4];
    uint32_t readable, writable; // one bit for each device
    int pointers, mapped_now; // pointers: not yet removed; mapped_now: those of them that no call has freed
    uint64_t used, used_high, reserved, reserved_high;
    unsigned char *chunks; // for each chunk: 1 if the pool has taken it from the device
    uint32_t *mapped; // for an imported pool: the ids of the chunks that this process has mapped once
    struct span *spans; // ordered by offset
};

CUresult pool_get(CUmemoryPool handle, struct pool **out);
CUresult pool_make(const CUmemPoolProps *props, struct pool **out);
CUresult pool_open(int fd, struct pool **out);
struct pool *pool_default(int place); // default pool; place is the ordinal of a device
void pool_unref_pointer(struct pool *p); // removes one pointer; the last pointer of a destroyed pool frees the pool
CUresult span_take(struct pool *p, uint64_t size, uint64_t asked, uint64_t *offset, struct op **wait);
void span_free(struct pool *p, uint64_t offset, struct stream *s, uint64_t seq);
void span_settle(struct pool *p, struct stream *s, uint64_t seq); // frees the parts that s has freed up to seq
void pool_trim(struct pool *p, uint64_t keep);

#endif
