// Memory pools, for the files that make them, allocate from them and share them.
#ifndef SIMCUDA_POOL_H
#define SIMCUDA_POOL_H

#include "sim.h"

#define CHUNK (32 * MIB) // a pool takes memory from its device in pieces of this size (measured)

// A part of the pool that is allocated, or that was freed in stream order and is free when the stream gets there.
struct span {
    struct span *next;
    uint64_t offset, size, asked;
    struct stream *freed_on;
    uint64_t freed_at;
};

struct pool {
    void *handle;
    struct backing *backing;
    int device; // -1: host
    bool imported, is_default, destroyed, exported;
    int imports; // how often this process has imported it
    int alloc_type, handle_types;
    CUmemLocation location;
    uint64_t va, threshold;
    int reuse[4];
    uint32_t readable, writable; // one bit a device
    int pointers, mapped_now; // not gone yet; and of these, not freed in any order
    uint64_t used, used_high, reserved, reserved_high;
    unsigned char *chunks; // 1: taken from the device
    uint32_t *mapped; // of an imported pool: the ids of the chunks that were mapped here once
    struct span *spans; // by offset
};

CUresult pool_get(CUmemoryPool handle, struct pool **out);
CUresult pool_make(const CUmemPoolProps *props, struct pool **out);
CUresult pool_open(int fd, struct pool **out);
struct pool *pool_default(int place); // of a device, by its ordinal
void pool_unref_pointer(struct pool *p); // one pointer less; a destroyed pool is freed with its last
CUresult span_take(struct pool *p, uint64_t size, uint64_t asked, uint64_t *offset, struct op **wait);
void span_free(struct pool *p, uint64_t offset, struct stream *s, uint64_t seq);
void span_settle(struct pool *p, struct stream *s, uint64_t seq); // the stream got there
void pool_trim(struct pool *p, uint64_t keep);

#endif
