// Access between devices.
#include "sim.h"

static bool bad(CUdevice dev) { return dev < 0 || dev >= config.devices; }

SIM_API CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer) {
    ENTER(cuDeviceCanAccessPeer, NEED_INIT);
    if (!can) return CUDA_ERROR_INVALID_VALUE;
    if (bad(dev) || bad(peer)) return CUDA_ERROR_INVALID_DEVICE;
    *can = dev != peer && config.peer;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice from, CUdevice to) {
    ENTER(cuDeviceGetP2PAttribute, NEED_INIT);
    if (!value || attribute < 1 || attribute > 5) return CUDA_ERROR_INVALID_VALUE;
    if (bad(from) || bad(to) || from == to) return CUDA_ERROR_INVALID_DEVICE;
    *value = attribute == 1 || attribute == 5 ? 0 : config.peer;
    return CUDA_SUCCESS;
}

static CUresult peer_of(CUcontext handle, unsigned flags, struct context **peer) {
    if (flags) return CUDA_ERROR_INVALID_VALUE;
    *peer = ctx_from(handle);
    if (!*peer || !(*peer)->alive || (*peer) == ctx_current()) return CUDA_ERROR_INVALID_CONTEXT;
    return (*peer)->device == ctx_current()->device || !config.peer ? CUDA_ERROR_PEER_ACCESS_UNSUPPORTED
                                                                    : CUDA_SUCCESS;
}

SIM_API CUresult cuCtxEnablePeerAccess(CUcontext handle, unsigned int flags) {
    ENTER(cuCtxEnablePeerAccess, NEED_CTX);
    LOCK();
    struct context *peer, *ctx = ctx_current();
    CUresult r = peer_of(handle, flags, &peer);
    if (r == CUDA_SUCCESS && (ctx->peers >> peer->device & 1)) r = CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    if (r == CUDA_SUCCESS) ctx->peers |= 1u << peer->device;
    UNLOCK();
    return r;
}

SIM_API CUresult cuCtxDisablePeerAccess(CUcontext handle) {
    ENTER(cuCtxDisablePeerAccess, NEED_CTX);
    LOCK();
    struct context *peer, *ctx = ctx_current();
    CUresult r = peer_of(handle, 0, &peer);
    if (r == CUDA_SUCCESS && !(ctx->peers >> peer->device & 1)) r = CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    if (r == CUDA_SUCCESS) ctx->peers &= ~(1u << peer->device);
    UNLOCK();
    return r;
}
