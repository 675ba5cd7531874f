// The calls on streams: they make streams, query them, wait for them, and add callbacks.
#include "sim.h"

#include <stdlib.h>

static struct stream *per_thread_stream(struct context *ctx) {
    for (struct stream *s = ctx->first; s; s = s->next) {
        if (s->per_thread && pthread_equal(s->owner, pthread_self())) return s;
    }
    struct stream *s = stream_make(ctx, 0, 0);
    s->per_thread = true;
    s->owner = pthread_self();
    return s;
}

CUresult stream_find(CUstream handle, struct stream **out) {
    *out = NULL;
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        struct context *ctx = ctx_current();
        if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
        *out = handle == CU_STREAM_PER_THREAD ? per_thread_stream(ctx) : ctx->legacy;
        return ctx->error;
    }
    *out = handle_get(KIND_STREAM, handle);
    return *out ? (*out)->ctx->error : CUDA_ERROR_INVALID_HANDLE;
}

CUresult stream_get(CUstream handle, struct stream **out) {
    CUresult r = stream_find(handle, out);
    return r == CUDA_SUCCESS && (*out)->capturing ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : r;
}

static CUresult create(CUstream *out, unsigned int flags, int priority) {
    if (!out || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct context *ctx = ctx_current();
    if (ctx->streams == ctx->room) { // measured: an H100 makes room for 43 streams at a time, and first lets all work end
        if (ctx->room) ctx_wait_idle(ctx);
        ctx->room += 43;
    }
    ctx->streams++;
    struct stream *s = stream_make(ctx, flags, priority > 0 ? 0 : priority < -5 ? -5 : priority);
    s->handle = handle_new(KIND_STREAM, s);
    counts_live(LIVE_STREAM, 1);
    UNLOCK();
    *out = s->handle;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuStreamCreate(CUstream *out, unsigned int flags) {
    ENTER(cuStreamCreate, NEED_CTX);
    return create(out, flags, 0);
}

SIM_API CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority) {
    ENTER(cuStreamCreateWithPriority, NEED_CTX);
    return create(out, flags, priority);
}

SIM_API CUresult cuStreamDestroy_v2(CUstream handle) {
    ENTER(cuStreamDestroy, NEED_INIT);
    LOCK();
    struct stream *s = handle_get(KIND_STREAM, handle);
    CUresult r = s ? s->ctx->error : CUDA_ERROR_INVALID_HANDLE;
    if (s) s->ctx->streams--;
    if (s) stream_close(s); // the stream closes even in a failed context; the result then is the error of the context
    else misuse_report("stale-handle", "cuStreamDestroy of %p, which is no stream (any more)", (void *)handle);
    UNLOCK();
    return r;
}

// Finds the stream of a call that waits for the stream's work, or asks if the work is done. Such a call spoils a capture of the stream.
static CUresult stream_ask(CUstream handle, struct stream **out) {
    CUresult r = stream_get(handle, out);
    if (r == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED) (*out)->spoiled = true;
    return r;
}

static void nothing(struct stream *s, struct op *op) { (void)s, (void)op; }

// Waits until s is idle. The legacy default stream is idle only when every blocking stream of its context is idle.
static void wait_all(struct stream *s) {
    if (s->legacy) {
        // Submit an empty operation, which the default stream runs after the work of all blocking streams.
        for (struct stream *other = s->ctx->first; other; other = other->next) {
            if (other->flags & CU_STREAM_NON_BLOCKING || other->done == other->queued) continue;
            stream_submit(s, op_new(0, nothing));
            break;
        }
    }
    stream_wait(s, s->queued);
}

SIM_API CUresult cuStreamSynchronize(CUstream handle) {
    ENTER(cuStreamSynchronize, handle == NULL || handle == CU_STREAM_LEGACY ? NEED_CTX : NEED_INIT);
    LOCK();
    struct stream *s;
    CUresult r = stream_ask(handle, &s);
    if (r == CUDA_SUCCESS) {
        struct context *ctx = s->ctx;
        wait_all(s);
        r = ctx->error;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuStreamQuery(CUstream handle) {
    ENTER(cuStreamQuery, NEED_INIT);
    LOCK();
    struct stream *s;
    CUresult r = stream_ask(handle, &s);
    if (r == CUDA_SUCCESS) {
        bool idle = s->done == s->queued;
        for (struct stream *o = s->ctx->first; s->legacy && o; o = o->next) {
            if (!(o->flags & CU_STREAM_NON_BLOCKING) && o->done != o->queued) idle = false;
        }
        r = idle ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuStreamGetPriority(CUstream handle, int *out) { ASK(cuStreamGetPriority, out, s->priority); }
SIM_API CUresult cuStreamGetFlags(CUstream handle, unsigned int *out) { ASK(cuStreamGetFlags, out, s->flags); }
SIM_API CUresult cuStreamGetId(CUstream handle, unsigned long long *out) { ASK(cuStreamGetId, out, s->id); }
SIM_API CUresult cuStreamGetDevice(CUstream handle, CUdevice *out) { ASK(cuStreamGetDevice, out, s->ctx->device); }
SIM_API CUresult cuStreamGetCtx(CUstream handle, CUcontext *out) { ASK(cuStreamGetCtx, out, s->ctx->handle); }

SIM_API CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *out, void **green) {
    if (green) *green = NULL;
    ASK(cuStreamGetCtx, out, s->ctx->handle);
}

struct callback { CUhostFn fn; CUstreamCallback with_status; CUstream stream; void *data; };

static void call_back(struct stream *s, struct op *op) {
    struct callback *c = (struct callback *)op->body;
    if (c->fn) c->fn(c->data);
    else c->with_status(c->stream, s->ctx->error, c->data);
}

static CUresult submit_callback(CUstream handle, struct callback c) {
    LOCK();
    struct stream *s;
    CUresult r = stream_get(handle, &s);
    if (r == CUDA_SUCCESS) {
        struct op *op = op_new(sizeof c, call_back);
        *(struct callback *)op->body = c;
        op->always = c.with_status != NULL; // runs in a failed context too: a callback with a status gets the error
        stream_submit(s, op);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuLaunchHostFunc(CUstream handle, CUhostFn fn, void *data) {
    ENTER(cuLaunchHostFunc, NEED_INIT);
    if (!fn) return CUDA_ERROR_INVALID_VALUE;
    return submit_callback(handle, (struct callback){.fn = fn, .data = data});
}

SIM_API CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback fn, void *data, unsigned int flags) {
    ENTER(cuStreamAddCallback, NEED_INIT);
    if (!fn || flags) return CUDA_ERROR_INVALID_VALUE;
    return submit_callback(handle, (struct callback){.with_status = fn, .stream = handle, .data = data});
}
