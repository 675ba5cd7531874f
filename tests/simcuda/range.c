// The ranges of addresses: every piece of memory that the driver knows, sorted by address.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

static struct range **ranges;
static size_t count, room;
static uint64_t last_serial;

// Returns the index of the first range that ends after the address.
static size_t position(uint64_t address) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (ranges[middle]->start + ranges[middle]->size <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct range *range_add(const struct range *r) {
    if (count == room) {
        room = room ? room * 2 : 256;
        ranges = realloc(ranges, room * sizeof *ranges);
        if (!ranges) abort();
    }
    size_t at = position(r->start);
    memmove(ranges + at + 1, ranges + at, (count - at) * sizeof *ranges);
    struct range *copy = malloc(sizeof *copy);
    if (!copy) abort();
    *copy = *r;
    copy->serial = ++last_serial;
    ranges[at] = copy;
    count++;
    return copy;
}

void range_remove(struct range *r) {
    size_t at = position(r->start);
    memmove(ranges + at, ranges + at + 1, (count - at - 1) * sizeof *ranges);
    count--;
    if (!r->freed && va_is_device(r->start)) misuse_freed(r->start, r->size);
    free(r);
}

struct range *range_find(uint64_t address) {
    size_t at = position(address);
    return at < count && ranges[at]->start <= address ? ranges[at] : NULL;
}

struct range *range_next(struct range *r) {
    size_t at = position(r->start) + 1;
    return at < count ? ranges[at] : NULL;
}

struct range *range_overlap(uint64_t start, uint64_t size) {
    size_t at = position(start);
    return at < count && ranges[at]->start < start + size ? ranges[at] : NULL;
}

struct range *range_first(void) { return count ? ranges[0] : NULL; }

bool range_is_known(uint64_t address) {
    struct range *r = range_find(address);
    return r && !r->freed;
}

bool range_is_host_pool(uint64_t address) {
    struct range *r = range_find(address);
    return r && r->kind == RANGE_POOL && r->backing->host;
}

uint8_t *range_pin(uint64_t address, uint64_t want, uint64_t *got, struct backing **pinned) {
    struct range *r = range_find(address);
    *pinned = NULL;
    if (!r) return NULL;
    uint64_t skip = address - r->start;
    *got = r->size - skip < want ? r->size - skip : want;
    if (r->backing) {
        backing_ref(r->backing);
        *pinned = r->backing;
    }
    return r->memory + skip;
}

// Succeeds if the `size` bytes at the address are in one allocation, even if no device has access to it.
CUresult range_within(uint64_t address, uint64_t size) {
    struct range *r = range_find(address);
    return r && !r->freed && address + size <= r->start + r->size ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool reachable(const struct range *r, enum access access, int device) {
    uint32_t mask = access == ACCESS_WRITE ? r->writable : r->readable;
    return mask >> device & 1;
}

// One access may span adjacent ranges only if all of them are mappings of virtual memory. Two allocations of another kind
// never count as one range.
CUresult range_check(uint64_t address, uint64_t size, enum access access, int device) {
    struct range *r = range_find(address);
    if (!r || r->freed) return CUDA_ERROR_INVALID_VALUE;
    if (r->kind == RANGE_LINEAR || r->kind == RANGE_IPC) {
        // A copy can access plain device memory of every device: without peer access, the driver stages the copy. For
        // kernels, kernel_memory also checks peer access.
        return range_within(address, size);
    }
    for (;;) {
        if (!reachable(r, access, device)) return CUDA_ERROR_INVALID_VALUE;
        uint64_t end = r->start + r->size;
        if (address + size <= end) return CUDA_SUCCESS;
        struct range *next = range_next(r);
        if (r->kind != RANGE_VMM || !next || next->kind != RANGE_VMM || next->start != end) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        r = next;
    }
}
