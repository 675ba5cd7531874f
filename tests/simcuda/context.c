// Makes and destroys primary contexts and other contexts. Keeps the stack of contexts of each thread, and the sticky error
// of each context.
#include "sim.h"

#include <stdlib.h>
#include <string.h>

enum { STACK = 1024 };
static _Thread_local struct context *stack[STACK];
static _Thread_local int depth;

static struct context *primaries[MAX_DEVICES];
static uint64_t next_id = 1;

static struct context *ctx_new(int device, bool primary, unsigned flags) {
    struct context *ctx = calloc(1, sizeof *ctx);
    if (!ctx) return NULL;
    ctx->device = device;
    ctx->primary = primary;
    ctx->flags = flags;
    ctx->handle = handle_new(KIND_CONTEXT, ctx);
    return ctx;
}

static void ctx_start(struct context *ctx) {
    static const size_t limits[8] = {1024, 7 * MIB, 8 * MIB, 0, 2048, 64, 0, 0};
    memcpy(ctx->limits, limits, sizeof limits);
    ctx->alive = true;
    ctx->error = CUDA_SUCCESS;
    ctx->peers = 0;
    ctx->id = next_id++;
    ctx->legacy = stream_make(ctx, 0, 0);
    ctx->legacy->legacy = true;
    counts_live(LIVE_CONTEXT, 1);
}

// The simulation never frees a context: another thread may still have the context on its stack, and must detect that the context is
// destroyed.
struct context *ctx_from(CUcontext handle) { return handle_get(KIND_CONTEXT, handle); }

struct context *ctx_primary(int device) {
    if (!primaries[device]) primaries[device] = ctx_new(device, true, 0);
    return primaries[device];
}

struct context *ctx_current(void) { return depth && stack[depth - 1]->alive ? stack[depth - 1] : NULL; }

struct context *ctx_top(void) { return depth ? stack[depth - 1] : NULL; }

CUresult ctx_need(struct context **out) {
    *out = NULL;
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    struct context *ctx = stack[depth - 1];
    if (!ctx->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    CUresult lost = faults_device(ctx->device);
    if (lost != CUDA_SUCCESS && ctx->error == CUDA_SUCCESS) {
        LOCK();
        ctx_fail(ctx, lost);
        UNLOCK();
    }
    if (ctx->error != CUDA_SUCCESS) return ctx->error;
    *out = ctx;
    return CUDA_SUCCESS;
}

// Measured: after a sticky error, the whole process can no longer use the device, even after a reset.
static CUresult ruined[MAX_DEVICES];

void ctx_fail(struct context *ctx, CUresult error) {
    if (ctx->error == CUDA_SUCCESS) ctx->error = error;
    if (ruined[ctx->device] == CUDA_SUCCESS) ruined[ctx->device] = error;
    pthread_cond_broadcast(&sim_progress);
}

void ctx_wait_idle(struct context *ctx) {
    int n = 0;
    for (struct stream *s = ctx->first; s; s = s->next) n++;
    struct dependency *all = calloc((size_t)n + 1, sizeof *all);
    if (!all) abort();
    n = 0;
    for (struct stream *s = ctx->first; s; s = s->next, n++) {
        all[n] = (struct dependency){s, s->queued};
        stream_ref(s);
    }
    // The wait uses a copy of the list, because the list of streams may change during the wait.
    for (int i = 0; i < n; i++) {
        stream_wait(all[i].stream, all[i].seq);
        stream_unref(all[i].stream);
    }
    free(all);
}

// Like the driver, this function first waits until the work of the context is done.
void ctx_destroy(struct context *ctx) {
    ctx_wait_idle(ctx);
    ctx->alive = false;
    while (ctx->first) {
        // Another thread may have queued more work since the wait above. This work ends here, even a wait for a word that nothing writes.
        ctx->first->aborted = true;
        stream_close(ctx->first);
    }
    ctx->legacy = NULL;
    linear_free_context(ctx);
    counts_live(LIVE_CONTEXT, -1);
}

static CUresult retain(int device, struct context **out) {
    CUresult lost = faults_device(device);
    if (lost != CUDA_SUCCESS) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (ruined[device] != CUDA_SUCCESS) return ruined[device];
    struct context *ctx = ctx_primary(device);
    if (!ctx->alive) ctx_start(ctx);
    ctx->refs++;
    *out = ctx;
    return CUDA_SUCCESS;
}

static bool bad_device(CUdevice dev) { return dev < 0 || dev >= config.devices; }

SIM_API CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice dev) {
    ENTER(cuDevicePrimaryCtxRetain, NEED_INIT);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (bad_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    struct context *ctx = NULL;
    CUresult r = retain(dev, &ctx);
    if (r == CUDA_SUCCESS) *out = ctx->handle;
    UNLOCK();
    return r;
}

SIM_API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev) {
    ENTER(cuDevicePrimaryCtxRelease, NEED_INIT);
    if (bad_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    struct context *ctx = ctx_primary(dev);
    CUresult r = ctx->alive && ctx->refs ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
    if (r == CUDA_SUCCESS && --ctx->refs == 0) ctx_destroy(ctx);
    UNLOCK();
    return r;
}

SIM_API CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev) {
    ENTER(cuDevicePrimaryCtxReset, NEED_INIT);
    if (bad_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    struct context *ctx = ctx_primary(dev);
    // Measured: after this call, the context is destroyed even if the process has retained it, until the process retains it again.
    if (ctx->alive) ctx_destroy(ctx);
    ctx->refs = 0;
    UNLOCK();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags) {
    ENTER(cuDevicePrimaryCtxSetFlags, NEED_INIT);
    if (bad_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (flags > 0xFF) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    ctx_primary(dev)->flags = flags;
    UNLOCK();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    ENTER(cuDevicePrimaryCtxGetState, NEED_INIT);
    if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
    if (bad_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    *flags = ctx_primary(dev)->flags;
    *active = ctx_primary(dev)->alive;
    UNLOCK();
    return CUDA_SUCCESS;
}

static CUresult push(struct context *ctx) {
    if (depth == STACK) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

static CUresult create(CUcontext *out, unsigned int flags, CUdevice dev) {
    if (!out || flags > 0xFF) return CUDA_ERROR_INVALID_VALUE;
    if (bad_device(dev)) return CUDA_ERROR_INVALID_DEVICE;
    if (faults_device(dev) != CUDA_SUCCESS) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    if (ruined[dev] != CUDA_SUCCESS) return ruined[dev];
    LOCK();
    struct context *ctx = ctx_new(dev, false, flags);
    if (ctx) ctx_start(ctx);
    UNLOCK();
    if (!ctx) return CUDA_ERROR_OUT_OF_MEMORY;
    *out = ctx->handle;
    return push(ctx);
}

SIM_API CUresult cuCtxCreate_v2(CUcontext *out, unsigned int flags, CUdevice dev) {
    ENTER(cuCtxCreate, NEED_INIT);
    return create(out, flags, dev);
}

SIM_API CUresult cuCtxCreate_v3(CUcontext *out, void *affinity, int count, unsigned int flags, CUdevice dev) {
    ENTER(cuCtxCreate, NEED_INIT);
    if (affinity || count) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(out, flags, dev);
}

SIM_API CUresult cuCtxCreate_v4(CUcontext *out, void *params, unsigned int flags, CUdevice dev) {
    ENTER(cuCtxCreate, NEED_INIT);
    if (params) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(out, flags, dev);
}

SIM_API CUresult cuCtxDestroy_v2(CUcontext handle) {
    ENTER(cuCtxDestroy, NEED_INIT);
    LOCK();
    struct context *ctx = ctx_from(handle);
    CUresult r = CUDA_SUCCESS;
    if (!ctx || !ctx->alive) r = CUDA_ERROR_INVALID_CONTEXT;
    else if (ctx->primary) r = CUDA_ERROR_INVALID_CONTEXT;
    else ctx_destroy(ctx);
    UNLOCK();
    if (r == CUDA_SUCCESS && depth && stack[depth - 1] == ctx) depth--;
    return r;
}

static CUresult alive_from(CUcontext handle, struct context **out) {
    LOCK();
    *out = ctx_from(handle);
    // Measured: a thread can make a destroyed primary context current; later calls then return an error.
    CUresult r = !*out ? CUDA_ERROR_INVALID_CONTEXT
        : (*out)->alive || (*out)->primary ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
    UNLOCK();
    return r;
}

SIM_API CUresult cuCtxPushCurrent_v2(CUcontext handle) {
    ENTER(cuCtxPushCurrent, NEED_INIT);
    struct context *ctx;
    CUresult r = alive_from(handle, &ctx);
    return r == CUDA_SUCCESS ? push(ctx) : r;
}

SIM_API CUresult cuCtxPopCurrent_v2(CUcontext *out) {
    ENTER(cuCtxPopCurrent, NEED_INIT);
    if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (out) *out = stack[depth]->handle;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCurrent(CUcontext handle) {
    ENTER(cuCtxSetCurrent, NEED_INIT);
    if (!handle) {
        if (depth) depth--;
        return CUDA_SUCCESS;
    }
    struct context *ctx;
    CUresult r = alive_from(handle, &ctx);
    if (r != CUDA_SUCCESS) return r;
    if (!depth) return push(ctx);
    stack[depth - 1] = ctx;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCurrent(CUcontext *out) {
    ENTER(cuCtxGetCurrent, NEED_INIT);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = depth ? stack[depth - 1]->handle : NULL;
    return CUDA_SUCCESS;
}
