// Events: one stream records an event, and other streams or the CPU wait for it.
#include "event.h"

#include <stdlib.h>
#include <time.h>

static void fence_unref(struct fence *f) {
    if (f && --f->refs == 0) free(f);
}

struct event *event_new(struct context *ctx, unsigned flags) {
    struct event *e = calloc(1, sizeof *e);
    if (!e) abort();
    e->ctx = ctx;
    e->flags = flags;
    e->fd = -1;
    e->handle = handle_new(KIND_EVENT, e);
    counts_live(LIVE_EVENT, 1);
    return e;
}

static CUresult event_get(CUevent handle, struct event **out) {
    *out = handle_get(KIND_EVENT, handle);
    return *out ? (*out)->ctx->error : CUDA_ERROR_INVALID_HANDLE;
}

SIM_API CUresult cuEventCreate(CUevent *out, unsigned int flags) {
    ENTER(cuEventCreate, NEED_CTX);
    const unsigned known = CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;
    if (!out || (flags & ~known)) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) && !(flags & CU_EVENT_DISABLE_TIMING)) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & CU_EVENT_INTERPROCESS) && !config.ipc_events) return CUDA_ERROR_NOT_SUPPORTED;
    LOCK();
    struct event *e = event_new(ctx_current(), flags);
    UNLOCK();
    *out = e->handle;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuEventDestroy_v2(CUevent handle) {
    ENTER(cuEventDestroy, NEED_INIT);
    LOCK();
    struct event *e = handle_get(KIND_EVENT, handle);
    CUresult error = CUDA_ERROR_INVALID_HANDLE;
    if (e) {
        handle_drop(handle);
        fence_unref(e->last);
        shared_event_close(e);
        counts_live(LIVE_EVENT, -1);
        error = e->ctx->error;
        free(e);
    } else {
        misuse_report("stale-handle", "cuEventDestroy of %p, which is no event (any more)", (void *)handle);
    }
    UNLOCK();
    return error; // in a failed context, the result is the error of the context; the event is destroyed nevertheless
}

struct recording { struct fence *fence; struct shared_event *shared; uint32_t count; };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void record(struct stream *s, struct op *op) {
    (void)s;
    struct recording *r = (struct recording *)op->body;
    r->fence->ns = now_ns();
    if (r->shared) shared_event_complete(r->shared, r->count);
}

static void record_over(struct op *op) {
    struct recording *r = (struct recording *)op->body;
    r->fence->done = true;
    stream_unref(r->fence->stream);
    r->fence->stream = NULL;
    fence_unref(r->fence);
}

static CUresult record_in(CUevent handle, CUstream stream) {
    LOCK();
    struct event *e;
    struct stream *s;
    CUresult r = event_get(handle, &e);
    if (r == CUDA_SUCCESS) r = stream_get(stream, &s);
    if (r == CUDA_SUCCESS && s->ctx != e->ctx) r = CUDA_ERROR_INVALID_HANDLE;
    if (r == CUDA_SUCCESS) {
        struct fence *f = calloc(1, sizeof *f);
        struct op *op = op_new(sizeof(struct recording), record);
        f->refs = 2; // one reference for the event, one for the operation
        f->stream = s;
        f->ctx = s->ctx;
        stream_ref(s);
        fence_unref(e->last);
        e->last = f;
        struct recording *body = (struct recording *)op->body;
        body->fence = f;
        body->shared = e->shared;
        if (e->shared) body->count = atomic_fetch_add(&e->shared->recorded, 1) + 1;
        op->drop = record_over;
        stream_submit(s, op);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuEventRecord(CUevent handle, CUstream stream) {
    ENTER(cuEventRecord, NEED_INIT);
    return record_in(handle, stream);
}

SIM_API CUresult cuEventRecordWithFlags(CUevent handle, CUstream stream, unsigned int flags) {
    ENTER(cuEventRecordWithFlags, NEED_INIT);
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    return record_in(handle, stream);
}

SIM_API CUresult cuEventQuery(CUevent handle) {
    ENTER(cuEventQuery, NEED_INIT);
    LOCK();
    struct event *e;
    CUresult r = event_get(handle, &e);
    if (r == CUDA_SUCCESS) {
        bool done = e->shared ? shared_event_reached(e->shared, e->shared->recorded) : !e->last || e->last->done;
        r = done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }
    UNLOCK();
    return r;
}

static bool ctx_failed(void *ctx) { return sim_stopping || ((struct context *)ctx)->error != CUDA_SUCCESS; }

SIM_API CUresult cuEventSynchronize(CUevent handle) {
    ENTER(cuEventSynchronize, NEED_INIT);
    LOCK();
    struct event *e;
    CUresult r = event_get(handle, &e);
    if (r == CUDA_SUCCESS) {
        struct context *ctx = e->ctx;
        if (e->shared) {
            struct shared_event *shared = e->shared;
            UNLOCK();
            shared_event_wait(shared, shared->recorded, ctx_failed, ctx);
            LOCK();
        } else if (e->last) {
            struct fence *f = e->last;
            f->refs++;
            while (!f->done && !ctx_failed(ctx)) pthread_cond_wait(&sim_progress, &sim_mu);
            fence_unref(f);
        }
        r = ctx->error;
    }
    UNLOCK();
    return r;
}

static CUresult elapsed(float *ms, CUevent start, CUevent end) {
    if (!ms) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct event *a, *b = NULL;
    CUresult r = event_get(start, &a);
    if (r == CUDA_SUCCESS) r = event_get(end, &b);
    if (r == CUDA_SUCCESS) {
        if (((a->flags | b->flags) & CU_EVENT_DISABLE_TIMING) || !a->last || !b->last) r = CUDA_ERROR_INVALID_HANDLE;
        else if (!a->last->done || !b->last->done) r = CUDA_ERROR_NOT_READY;
        else *ms = (float)((double)(int64_t)(b->last->ns - a->last->ns) / 1e6);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuEventElapsedTime(float *ms, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime, NEED_INIT);
    return elapsed(ms, start, end);
}

SIM_API CUresult cuEventElapsedTime_v2(float *ms, CUevent start, CUevent end) {
    ENTER(cuEventElapsedTime, NEED_INIT);
    return elapsed(ms, start, end);
}

static bool failed(void *s) { return stream_failed(s); }

static void wait_fence(struct stream *s, struct op *op) {
    struct recording *r = (struct recording *)op->body;
    if (r->shared) {
        shared_event_wait(r->shared, r->count, failed, s);
        return;
    }
    LOCK();
    while (!r->fence->done && !stream_failed(s)) pthread_cond_wait(&sim_progress, &sim_mu);
    UNLOCK();
}

static void wait_over(struct op *op) { fence_unref(((struct recording *)op->body)->fence); }

SIM_API CUresult cuStreamWaitEvent(CUstream stream, CUevent handle, unsigned int flags) {
    ENTER(cuStreamWaitEvent, NEED_INIT);
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct event *e;
    struct stream *s;
    CUresult r = event_get(handle, &e);
    if (r == CUDA_SUCCESS) r = stream_get(stream, &s);
    bool waits = r == CUDA_SUCCESS &&
        (e->shared ? !shared_event_reached(e->shared, e->shared->recorded) : e->last && !e->last->done);
    if (waits) {
        struct op *op = op_new(sizeof(struct recording), wait_fence);
        struct recording *body = (struct recording *)op->body;
        if (e->shared) {
            body->shared = e->shared;
            body->count = e->shared->recorded;
        } else {
            body->fence = e->last;
            body->fence->refs++;
        }
        op->drop = wait_over;
        stream_submit(s, op);
    }
    UNLOCK();
    return r;
}
