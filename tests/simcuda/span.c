// The allocator of a pool: first fit over the address space of the pool. The pool takes memory from the device in
// chunks.
#include "pool.h"

#include <stdlib.h>

static bool chunk_in_use(struct pool *p, uint64_t chunk) {
    uint64_t from = chunk * CHUNK, to = from + CHUNK;
    for (struct span *s = p->spans; s && s->offset < to; s = s->next) {
        if (s->offset + s->size > from) return true;
    }
    return false;
}

static void set_reserved(struct pool *p, uint64_t bytes) {
    p->reserved = bytes;
    p->backing->header->reserved = bytes;
    if (bytes > p->reserved_high) p->reserved_high = bytes;
}

void pool_trim(struct pool *p, uint64_t keep) {
    for (uint64_t i = p->backing->capacity / CHUNK; i-- > 0 && p->reserved > keep;) {
        if (!p->chunks[i] || chunk_in_use(p, i)) continue;
        backing_discard(p->backing, i * CHUNK, CHUNK);
        p->chunks[i] = 0;
        p->backing->header->tables->chunk_id[i] = 0;
        set_reserved(p, p->reserved - CHUNK);
    }
}

static uint64_t missing(struct pool *p, uint64_t offset, uint64_t size) {
    uint64_t bytes = 0;
    for (uint64_t i = offset / CHUNK; i <= (offset + size - 1) / CHUNK; i++) bytes += p->chunks[i] ? 0 : CHUNK;
    return bytes;
}

static CUresult reserve(struct pool *p, uint64_t offset, uint64_t size) {
    uint64_t bytes = missing(p, offset, size);
    if (!bytes) return CUDA_SUCCESS;
    if (p->device >= 0 && !usage_take(p->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    static uint32_t last_id;
    for (uint64_t i = offset / CHUNK; i <= (offset + size - 1) / CHUNK; i++) {
        if (p->chunks[i]) continue;
        p->chunks[i] = 1;
        p->backing->header->tables->chunk_id[i] = ++last_id;
    }
    set_reserved(p, p->reserved + bytes);
    return CUDA_SUCCESS;
}

// Finds the first gap of at least `size` bytes. If with_pending is true, parts that were freed in stream order count as free.
static bool find_gap(struct pool *p, uint64_t size, bool with_pending, uint64_t *offset) {
    uint64_t at = 0;
    for (struct span *s = p->spans; s; s = s->next) {
        if (with_pending && s->freed_on) continue;
        if (s->offset - at >= size) break;
        at = s->offset + s->size;
    }
    *offset = at;
    return at + size <= p->backing->capacity;
}

static void drop(struct span **link) {
    struct span *s = *link;
    *link = s->next;
    if (s->freed_on) stream_unref(s->freed_on);
    free(s);
}

// Takes the `size` bytes at `offset` out of every pending span that contains some of them. Sets *wait to an operation that waits
// for the streams that free these spans, like the dependencies that the driver inserts.
static void claim(struct pool *p, uint64_t offset, uint64_t size, struct op **wait) {
    uint64_t end = offset + size;
    for (struct span **link = &p->spans; *link;) {
        struct span *s = *link;
        uint64_t s_end = s->offset + s->size;
        if (s_end <= offset || s->offset >= end) {
            link = &s->next;
            continue;
        }
        if (!*wait) *wait = op_new(0, NULL);
        op_depend(*wait, s->freed_on, s->freed_at);
        if (s_end > end) {
            struct span *rest = malloc(sizeof *rest);
            if (!rest) abort();
            *rest = (struct span){s->next, end, s_end - end, 0, s->freed_on, s->freed_at};
            stream_ref(s->freed_on);
            s->next = rest;
        }
        if (s->offset < offset) {
            s->size = offset - s->offset;
            link = &s->next;
        } else {
            drop(link);
        }
    }
}

CUresult span_take(struct pool *p, uint64_t size, uint64_t asked, uint64_t *offset, struct op **wait) {
    *wait = NULL;
    if (size > p->backing->capacity) return CUDA_ERROR_OUT_OF_MEMORY;
    bool found = find_gap(p, size, false, offset);
    if (!found && find_gap(p, size, true, offset)) {
        claim(p, *offset, size, wait);
        found = true;
    }
    if (!found) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult r = reserve(p, *offset, size);
    if (r != CUDA_SUCCESS) {
        free(*wait);
        *wait = NULL;
        return r;
    }
    struct span *s = calloc(1, sizeof *s);
    if (!s) abort();
    s->offset = *offset;
    s->size = size;
    s->asked = asked; // the requested size counts as used (measured)
    struct span **link = &p->spans;
    while (*link && (*link)->offset < *offset) link = &(*link)->next;
    s->next = *link;
    *link = s;
    p->used += asked;
    if (p->used > p->used_high) p->used_high = p->used;
    return CUDA_SUCCESS;
}

void span_free(struct pool *p, uint64_t offset, struct stream *s, uint64_t seq) {
    for (struct span **link = &p->spans; *link; link = &(*link)->next) {
        if ((*link)->offset != offset || (*link)->freed_on) continue;
        p->used -= (*link)->asked;
        if (s) {
            (*link)->freed_on = s;
            (*link)->freed_at = seq;
            stream_ref(s);
        } else {
            drop(link);
            pool_trim(p, p->threshold);
        }
        return;
    }
}

void span_settle(struct pool *p, struct stream *s, uint64_t seq) {
    for (struct span **link = &p->spans; *link;) {
        if ((*link)->freed_on == s && (*link)->freed_at <= seq) drop(link);
        else link = &(*link)->next;
    }
    pool_trim(p, p->threshold);
}
