// Fills.
#include "access.h"

#include <string.h>

struct filling {
    uint64_t address, size;
    uint32_t value;
    int width;
};

static void fill_piece(uint8_t *at, uint64_t size, void *arg) {
    const struct filling *f = arg;
    if (f->width == 1) {
        memset(at, (int)f->value, size);
        return;
    }
    for (uint64_t i = 0; i < size; i += (uint64_t)f->width) memcpy(at + i, &f->value, (size_t)f->width);
}

static void fill(struct stream *s, struct op *op) {
    struct filling *f = (struct filling *)op->body;
    if (touch(f->address, f->size, fill_piece, f) != CUDA_SUCCESS) illegal_address(s, "a fill", f->address);
}

static CUresult submit(CUstream stream, struct filling f, const char *call) {
    if (f.address % (unsigned)f.width) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct stream *s;
    CUresult r = stream_get(stream, &s);
    if (r == CUDA_SUCCESS && f.size) {
        r = range_check(f.address, f.size, ACCESS_WRITE, s->ctx->device);
        if (r != CUDA_SUCCESS) {
            misuse_address(call, f.address);
        } else {
            struct op *op = op_new(sizeof f, fill);
            op->brief = true;
            *(struct filling *)op->body = f;
            stream_submit(s, op);
        }
    }
    UNLOCK();
    return r;
}

// A call of a fill does not wait until the memory is filled. A fill whose name does not end with Async runs in the default stream.
#define FILL(name, async_name, symbol, async_symbol, type, bytes)                                             \
    SIM_API CUresult symbol(CUdeviceptr address, type value, size_t n) {                                      \
        ENTER(name, NEED_CTX);                                                                                \
        return submit(NULL, (struct filling){address, n * bytes, value, bytes}, #name);                       \
    }                                                                                                         \
    SIM_API CUresult async_symbol(CUdeviceptr address, type value, size_t n, CUstream stream) {               \
        ENTER(async_name, NEED_CTX);                                                                          \
        return submit(stream, (struct filling){address, n * bytes, value, bytes}, #async_name);               \
    }

FILL(cuMemsetD8, cuMemsetD8Async, cuMemsetD8_v2, cuMemsetD8Async, unsigned char, 1)
FILL(cuMemsetD16, cuMemsetD16Async, cuMemsetD16_v2, cuMemsetD16Async, unsigned short, 2)
FILL(cuMemsetD32, cuMemsetD32Async, cuMemsetD32_v2, cuMemsetD32Async, unsigned int, 4)
