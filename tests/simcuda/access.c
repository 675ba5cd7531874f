// Lets streams access memory, piece by piece. While a stream accesses a piece, the piece is pinned: it stays mapped even if the program
// frees it.
#include "access.h"

#include <string.h>

static uint8_t *pin_side(struct side side, uint64_t want, uint64_t *got, struct backing **pinned) {
    *pinned = NULL;
    if (!side.host) return range_pin(side.address, want, got, pinned);
    *got = want;
    return (uint8_t *)side.address;
}

static void unpin(struct backing *b) {
    if (b) backing_unref(b);
}

CUresult copy_now(struct side dst, struct side src, uint64_t size) {
    CUresult r = CUDA_SUCCESS;
    while (size && r == CUDA_SUCCESS) {
        struct backing *dst_pin, *src_pin = NULL;
        uint64_t n = size, m = size;
        LOCK();
        uint8_t *to = pin_side(dst, size, &n, &dst_pin);
        uint8_t *from = pin_side(src, size, &m, &src_pin);
        UNLOCK();
        if (m < n) n = m;
        if (to && from) memmove(to, from, n);
        else r = CUDA_ERROR_ILLEGAL_ADDRESS;
        LOCK();
        unpin(dst_pin);
        unpin(src_pin);
        UNLOCK();
        size -= n;
        dst.address += n;
        src.address += n;
    }
    return r;
}

CUresult touch(uint64_t address, uint64_t size, void (*fn)(uint8_t *at, uint64_t size, void *arg), void *arg) {
    while (size) {
        struct backing *pinned;
        uint64_t n = size;
        LOCK();
        uint8_t *at = range_pin(address, size, &n, &pinned);
        UNLOCK();
        if (!at) return CUDA_ERROR_ILLEGAL_ADDRESS;
        fn(at, n, arg);
        LOCK();
        unpin(pinned);
        UNLOCK();
        size -= n;
        address += n;
    }
    return CUDA_SUCCESS;
}

void illegal_address(struct stream *s, const char *what, uint64_t address) {
    LOCK();
    misuse_address(what, address);
    ctx_fail(s->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
    UNLOCK();
}
