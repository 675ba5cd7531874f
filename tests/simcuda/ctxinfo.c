// The attributes of a context.
#include "sim.h"

static CUresult named(CUcontext handle, struct context **out) {
    if (!handle) return ctx_need(out);
    LOCK();
    *out = ctx_from(handle);
    UNLOCK();
    if (!*out) return CUDA_ERROR_INVALID_CONTEXT;
    return (*out)->alive ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static CUresult synchronise(struct context *ctx) {
    bool captured = false;
    LOCK();
    for (struct stream *s = ctx->first; s; s = s->next)
        if (s->capturing) captured = s->spoiled = true;
    if (!captured) ctx_wait_idle(ctx);
    UNLOCK();
    return captured ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : ctx->error;
}

SIM_API CUresult cuCtxSynchronize(void) {
    ENTER(cuCtxSynchronize, NEED_CTX);
    return synchronise(ctx_current());
}

SIM_API CUresult cuCtxSynchronize_v2(CUcontext handle) {
    ENTER(cuCtxSynchronize, NEED_INIT);
    struct context *ctx;
    CUresult r = named(handle, &ctx);
    return r == CUDA_SUCCESS ? synchronise(ctx) : r;
}

SIM_API CUresult cuCtxGetDevice(CUdevice *dev) {
    ENTER(cuCtxGetDevice, NEED_INIT);
    if (!dev) return CUDA_ERROR_INVALID_VALUE;
    struct context *ctx = ctx_top(); // the context may be destroyed
    if (!ctx) misuse_missing_context(FN_cuCtxGetDevice);
    if (ctx) *dev = ctx->device;
    return ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API CUresult cuCtxGetDevice_v2(CUdevice *dev, CUcontext handle) {
    ENTER(cuCtxGetDevice, NEED_INIT);
    if (!dev) return CUDA_ERROR_INVALID_VALUE;
    struct context *ctx;
    CUresult r = named(handle, &ctx);
    if (r == CUDA_SUCCESS) *dev = ctx->device;
    return r;
}

SIM_API CUresult cuCtxGetFlags(unsigned int *flags) {
    ENTER(cuCtxGetFlags, NEED_CTX);
    if (!flags) return CUDA_ERROR_INVALID_VALUE;
    *flags = ctx_current()->flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetFlags(unsigned int flags) {
    ENTER(cuCtxSetFlags, NEED_CTX);
    if (flags > 0xFF) return CUDA_ERROR_INVALID_VALUE;
    ctx_current()->flags = flags;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetId(CUcontext handle, unsigned long long *id) {
    ENTER(cuCtxGetId, NEED_INIT);
    if (!id) return CUDA_ERROR_INVALID_VALUE;
    struct context *ctx;
    CUresult r = named(handle, &ctx);
    if (r == CUDA_SUCCESS) *id = ctx->id;
    return r;
}

SIM_API CUresult cuCtxGetApiVersion(CUcontext handle, unsigned int *version) {
    ENTER(cuCtxGetApiVersion, NEED_INIT);
    if (!version) return CUDA_ERROR_INVALID_VALUE;
    struct context *ctx;
    CUresult r = named(handle, &ctx);
    if (r == CUDA_SUCCESS) *version = 3020;
    return r;
}

SIM_API CUresult cuCtxGetLimit(size_t *value, int limit) {
    ENTER(cuCtxGetLimit, NEED_CTX);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= 8 || limit == 3) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    *value = ctx_current()->limits[limit];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetLimit(int limit, size_t value) {
    ENTER(cuCtxSetLimit, NEED_CTX);
    if (limit < 0 || limit >= 8 || limit == 3) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    ctx_current()->limits[limit] = value;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetCacheConfig(int *value) {
    ENTER(cuCtxGetCacheConfig, NEED_CTX);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    *value = ctx_current()->cache_config;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxSetCacheConfig(int value) {
    ENTER(cuCtxSetCacheConfig, NEED_CTX);
    if (value < 0 || value > 3) return CUDA_ERROR_INVALID_VALUE;
    ctx_current()->cache_config = value;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    ENTER(cuCtxGetStreamPriorityRange, NEED_CTX);
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return CUDA_SUCCESS;
}
