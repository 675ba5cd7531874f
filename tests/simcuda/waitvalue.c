// Stream memory operations: streams write words in memory, and wait for words.
#include "sim.h"

#include <limits.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct word {
    uint64_t address, value;
    unsigned flags;
    bool wide;
};

// Wakes the streams that wait for the word, in all processes of this simulated machine. They sleep on the lower half of the word.
static void announce(uint8_t *at) { syscall(SYS_futex, at, FUTEX_WAKE, INT_MAX, NULL, NULL, 0); }

static uint64_t load(uint8_t *at, bool wide) {
    return wide ? atomic_load((_Atomic uint64_t *)(void *)at) : atomic_load((_Atomic uint32_t *)(void *)at);
}

static bool reached(uint64_t now, const struct word *w) {
    switch (w->flags & 3) {
    // "Greater or equal" compares the signed difference, as on the GPU, so words may wrap around.
    case CU_STREAM_WAIT_VALUE_GEQ:
        return w->wide ? (int64_t)(now - w->value) >= 0 : (int32_t)((uint32_t)now - (uint32_t)w->value) >= 0;
    case CU_STREAM_WAIT_VALUE_EQ: return now == w->value;
    case CU_STREAM_WAIT_VALUE_AND: return (now & w->value) != 0;
    default: return (w->wide ? ~(now | w->value) : (uint32_t) ~(now | w->value)) != 0;
    }
}

static void illegal(struct stream *s, uint64_t address) {
    LOCK();
    misuse_address("a stream memory operation", address);
    ctx_fail(s->ctx, CUDA_ERROR_ILLEGAL_ADDRESS);
    UNLOCK();
}

static uint8_t *pin(struct stream *s, const struct word *w, struct backing **pinned) {
    uint64_t got;
    LOCK();
    uint8_t *at = range_pin(w->address, w->wide ? 8 : 4, &got, pinned);
    UNLOCK();
    if (!at) illegal(s, w->address);
    return at;
}

static void unpin(struct backing *b) {
    LOCK();
    if (b) backing_unref(b);
    UNLOCK();
}

static void wait_word(struct stream *s, struct op *op) {
    struct word *w = (struct word *)op->body;
    struct backing *pinned;
    uint8_t *at = pin(s, w, &pinned);
    if (!at) return;
    // A CPU or a real GPU may write the word without a notification, so the wait also checks the word at intervals.
    const struct timespec pause = {.tv_nsec = 100000};
    unsigned round = 0;
    for (uint64_t now; now = load(at, w->wide), !reached(now, w) && !stream_failed(s);) {
        if (round < 64) nap(&round);
        else if (syscall(SYS_futex, at, FUTEX_WAIT, (uint32_t)now, &pause, NULL, 0) != 0) nap(&round);
    }
    unpin(pinned);
}

static void write_word(struct stream *s, struct op *op) {
    struct word *w = (struct word *)op->body;
    struct backing *pinned;
    uint8_t *at = pin(s, w, &pinned);
    if (!at) return;
    LOCK();
    bool may = range_check(w->address, 4, ACCESS_WRITE, s->ctx->device) == CUDA_SUCCESS;
    if (!may) ctx_fail(s->ctx, CUDA_ERROR_LAUNCH_FAILED);
    if (!may && pinned) backing_unref(pinned);
    UNLOCK();
    if (!may) return;
    if (w->wide) atomic_store((_Atomic uint64_t *)(void *)at, w->value);
    else atomic_store((_Atomic uint32_t *)(void *)at, (uint32_t)w->value);
    announce(at);
    unpin(pinned);
}

static CUresult check(struct stream *s, const struct word *w, bool writes) {
    if (w->address % (w->wide ? 8 : 4)) return CUDA_ERROR_INVALID_VALUE;
    struct range *r = range_find(w->address);
    if (!r) {
        misuse_address(writes ? "cuStreamWriteValue" : "cuStreamWaitValue", w->address);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (r->kind == RANGE_POOL) return CUDA_ERROR_INVALID_VALUE; // measured: the driver accepts no words in pool memory
    // Measured: the call accepts a write to read-only memory, and the stream fails when it reaches the write.
    return range_check(w->address, w->wide ? 8 : 4, ACCESS_READ, s->ctx->device);
}

static CUresult submit(struct stream *s, struct word w, bool writes) {
    unsigned known = writes ? 1 : 3 | CU_STREAM_WAIT_VALUE_FLUSH;
    if (w.flags & ~known) return CUDA_ERROR_INVALID_VALUE;
    if (!writes && (w.flags & CU_STREAM_WAIT_VALUE_FLUSH)) return CUDA_ERROR_NOT_SUPPORTED; // as the attribute of the device says
    CUresult r = check(s, &w, writes);
    if (r != CUDA_SUCCESS) return r;
    struct op *op = op_new(sizeof w, writes ? write_word : wait_word);
    *(struct word *)op->body = w;
    stream_submit(s, op);
    return CUDA_SUCCESS;
}

static CUresult submit_to(CUstream handle, struct word w, bool writes) {
    if (!config.stream_mem_ops) return CUDA_ERROR_NOT_SUPPORTED;
    LOCK();
    struct stream *s;
    CUresult r = stream_get(handle, &s);
    if (r == CUDA_SUCCESS) r = submit(s, w, writes);
    UNLOCK();
    return r;
}

SIM_API CUresult cuStreamWaitValue32_v2(CUstream s, CUdeviceptr address, uint32_t value, unsigned int flags) {
    ENTER(cuStreamWaitValue32, NEED_INIT);
    return submit_to(s, (struct word){address, value, flags, false}, false);
}

SIM_API CUresult cuStreamWaitValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned int flags) {
    ENTER(cuStreamWaitValue64, NEED_INIT);
    return submit_to(s, (struct word){address, value, flags, true}, false);
}

SIM_API CUresult cuStreamWriteValue32_v2(CUstream s, CUdeviceptr address, uint32_t value, unsigned int flags) {
    ENTER(cuStreamWriteValue32, NEED_INIT);
    return submit_to(s, (struct word){address, value, flags, false}, true);
}

SIM_API CUresult cuStreamWriteValue64_v2(CUstream s, CUdeviceptr address, uint64_t value, unsigned int flags) {
    ENTER(cuStreamWriteValue64, NEED_INIT);
    return submit_to(s, (struct word){address, value, flags, true}, true);
}

SIM_API CUresult cuStreamBatchMemOp_v2(CUstream handle, unsigned int count, CUstreamBatchMemOpParams *ops,
                                       unsigned int flags) {
    ENTER(cuStreamBatchMemOp, NEED_INIT);
    if (!config.stream_mem_ops) return CUDA_ERROR_NOT_SUPPORTED;
    if (flags || count > 256 || (count && !ops)) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct stream *s;
    CUresult r = stream_get(handle, &s);
    for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++) {
        int what = ops[i].operation;
        if (what == CU_STREAM_MEM_OP_BARRIER || what == CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES) continue;
        bool wide = what == CU_STREAM_MEM_OP_WAIT_VALUE_64 || what == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        bool writes = what == CU_STREAM_MEM_OP_WRITE_VALUE_32 || what == CU_STREAM_MEM_OP_WRITE_VALUE_64;
        bool waits = what == CU_STREAM_MEM_OP_WAIT_VALUE_32 || what == CU_STREAM_MEM_OP_WAIT_VALUE_64;
        const CUmemOpValue *v = &ops[i].value;
        if (!writes && !waits) r = CUDA_ERROR_INVALID_VALUE;
        else r = submit(s, (struct word){v->address, wide ? v->value64 : v->value, v->flags, wide}, writes);
    }
    UNLOCK();
    return r;
}
