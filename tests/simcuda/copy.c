// Copies. Like the driver, the simulation no longer uses pageable host memory after the call has returned, even if the call is
// asynchronous.
#include "access.h"

#include <stdlib.h>
#include <string.h>

enum direction { ANY, HOST_TO_DEVICE, DEVICE_TO_HOST, DEVICE_TO_DEVICE };

struct copying {
    struct side dst, src;
    uint64_t size;
    void *staged;
};

static void copy(struct stream *s, struct op *op) {
    struct copying *c = (struct copying *)op->body;
    if (copy_now(c->dst, c->src, c->size) == CUDA_SUCCESS) return;
    illegal_address(s, "a copy", c->dst.address);
    illegal_address(s, "a copy", c->src.address);
}

static void copy_over(struct op *op) { free(((struct copying *)op->body)->staged); }

// Checks one side of a copy, the `size` bytes at `address`, and sets *out. Fails if the call needs memory of a device
// (must_be_known) and these bytes are other memory, if the device cannot access all of them, or if they are at a device address
// without memory.
static CUresult look_at(uint64_t address, uint64_t size, enum access access, bool must_be_known, int device,
                        const char *call, struct side *out) {
    *out = (struct side){address, !range_is_known(address)};
    if (out->host && va_is_device(address)) {
        misuse_address(call, address);
        return CUDA_ERROR_INVALID_VALUE;
    }
    if (out->host) return must_be_known ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    // Measured on two devices: a call that names a direction does not accept memory of a host pool as memory
    // of a device. A call that names no direction copies this memory, even for a device that has no access to it.
    if (range_is_host_pool(address)) return must_be_known ? CUDA_ERROR_INVALID_VALUE : range_within(address, size);
    return range_check(address, size, access, device);
}

static CUresult submit(struct stream *s, uint64_t dst, uint64_t src, uint64_t size, enum direction direction,
                       const char *call, bool wait) {
    struct copying c = {.size = size};
    bool to_device = direction == HOST_TO_DEVICE || direction == DEVICE_TO_DEVICE;
    bool from_device = direction == DEVICE_TO_HOST || direction == DEVICE_TO_DEVICE;
    CUresult r = look_at(dst, size, ACCESS_WRITE, to_device, s->ctx->device, call, &c.dst);
    if (r == CUDA_SUCCESS) r = look_at(src, size, ACCESS_READ, from_device, s->ctx->device, call, &c.src);
    if (r != CUDA_SUCCESS) return r;
    if (c.src.host && !wait) {
        c.staged = malloc(size);
        if (!c.staged) return CUDA_ERROR_OUT_OF_MEMORY;
        memcpy(c.staged, (void *)src, size);
        c.src.address = (uint64_t)c.staged;
    }
    struct op *op = op_new(sizeof c, copy);
    op->brief = true;
    *(struct copying *)op->body = c;
    op->drop = copy_over;
    stream_submit(s, op);
    if (wait || c.dst.host) {
        struct context *ctx = s->ctx;
        stream_wait(s, s->queued);
        return ctx->error;
    }
    return CUDA_SUCCESS;
}

static CUresult run(CUstream stream, uint64_t dst, uint64_t src, uint64_t size, enum direction direction,
                    const char *call, bool wait) {
    LOCK();
    struct stream *s;
    CUresult r = stream_get(stream, &s);
    if (r == CUDA_SUCCESS && size && (!dst || !src)) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && size) r = submit(s, dst, src, size, direction, call, wait);
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    ENTER(cuMemcpy, NEED_CTX);
    return run(NULL, dst, src, size, ANY, "cuMemcpy", true);
}

SIM_API CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    ENTER(cuMemcpyAsync, NEED_CTX);
    return run(stream, dst, src, size, ANY, "cuMemcpyAsync", false);
}

SIM_API CUresult cuMemcpyHtoD_v2(CUdeviceptr dst, const void *src, size_t size) {
    ENTER(cuMemcpyHtoD, NEED_CTX);
    return run(NULL, dst, (uint64_t)src, size, HOST_TO_DEVICE, "cuMemcpyHtoD", true);
}

SIM_API CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr dst, const void *src, size_t size, CUstream stream) {
    ENTER(cuMemcpyHtoDAsync, NEED_CTX);
    return run(stream, dst, (uint64_t)src, size, HOST_TO_DEVICE, "cuMemcpyHtoDAsync", false);
}

SIM_API CUresult cuMemcpyDtoH_v2(void *dst, CUdeviceptr src, size_t size) {
    ENTER(cuMemcpyDtoH, NEED_CTX);
    return run(NULL, (uint64_t)dst, src, size, DEVICE_TO_HOST, "cuMemcpyDtoH", true);
}

SIM_API CUresult cuMemcpyDtoHAsync_v2(void *dst, CUdeviceptr src, size_t size, CUstream stream) {
    ENTER(cuMemcpyDtoHAsync, NEED_CTX);
    return run(stream, (uint64_t)dst, src, size, DEVICE_TO_HOST, "cuMemcpyDtoHAsync", false);
}

// This call does not wait for the copy, although its name does not end with Async. The driver's call does not wait either if the copy is
// within one device. The copy runs in the default stream.
SIM_API CUresult cuMemcpyDtoD_v2(CUdeviceptr dst, CUdeviceptr src, size_t size) {
    ENTER(cuMemcpyDtoD, NEED_CTX);
    return run(NULL, dst, src, size, DEVICE_TO_DEVICE, "cuMemcpyDtoD", false);
}

SIM_API CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr dst, CUdeviceptr src, size_t size, CUstream stream) {
    ENTER(cuMemcpyDtoDAsync, NEED_CTX);
    return run(stream, dst, src, size, DEVICE_TO_DEVICE, "cuMemcpyDtoDAsync", false);
}

static CUresult contexts_known(CUcontext a, CUcontext b) {
    LOCK();
    bool known = ctx_from(a) && ctx_from(b);
    UNLOCK();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

SIM_API CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t size) {
    ENTER(cuMemcpyPeer, NEED_CTX);
    CUresult r = contexts_known(to, from);
    return r == CUDA_SUCCESS ? run(NULL, dst, src, size, DEVICE_TO_DEVICE, "cuMemcpyPeer", true) : r;
}

SIM_API CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t size,
                                   CUstream stream) {
    ENTER(cuMemcpyPeerAsync, NEED_CTX);
    CUresult r = contexts_known(to, from);
    return r == CUDA_SUCCESS ? run(stream, dst, src, size, DEVICE_TO_DEVICE, "cuMemcpyPeerAsync", false) : r;
}

static CUresult row_side(int type, const void *host, CUdeviceptr device, void *array, uint64_t *out) {
    (void)array;
    switch (type) {
    case CU_MEMORYTYPE_HOST: *out = (uint64_t)host; return CUDA_SUCCESS;
    case CU_MEMORYTYPE_DEVICE:
    case CU_MEMORYTYPE_UNIFIED: *out = device; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static CUresult rows(const CUDA_MEMCPY2D *c, CUstream stream, const char *call, bool wait) {
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    uint64_t dst = 0, src = 0;
    CUresult r = row_side(c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, &dst);
    if (r == CUDA_SUCCESS) r = row_side(c->srcMemoryType, c->srcHost, c->srcDevice, c->srcArray, &src);
    uint64_t dst_pitch = c->dstPitch ? c->dstPitch : c->WidthInBytes;
    uint64_t src_pitch = c->srcPitch ? c->srcPitch : c->WidthInBytes;
    if (c->WidthInBytes > dst_pitch || c->WidthInBytes > src_pitch) return CUDA_ERROR_INVALID_VALUE;
    for (size_t y = 0; y < c->Height && r == CUDA_SUCCESS; y++) {
        uint64_t to = dst + (c->dstY + y) * dst_pitch + c->dstXInBytes;
        uint64_t from = src + (c->srcY + y) * src_pitch + c->srcXInBytes;
        r = run(stream, to, from, c->WidthInBytes, ANY, call, wait);
    }
    return r;
}

SIM_API CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *c) {
    ENTER(cuMemcpy2D, NEED_CTX);
    return rows(c, NULL, "cuMemcpy2D", true);
}

SIM_API CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *c, CUstream stream) {
    ENTER(cuMemcpy2DAsync, NEED_CTX);
    return rows(c, stream, "cuMemcpy2DAsync", false);
}
