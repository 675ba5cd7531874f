// Functions: attributes and launches.
#include "module.h"

#include <string.h>

static CUresult info(void *handle, size_t index, size_t *offset, size_t *size) {
    LOCK();
    struct function *f = handle_get(KIND_FUNCTION, handle);
    UNLOCK();
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!offset || index >= (size_t)f->kernel->params) return CUDA_ERROR_INVALID_VALUE;
    size_t at = 0;
    for (size_t i = 0;; i++) {
        size_t n = f->kernel->size[i];
        at = (at + n - 1) / n * n;
        if (i == index) break;
        at += n;
    }
    *offset = at;
    if (size) *size = f->kernel->size[index];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *size) {
    ENTER(cuKernelGetParamInfo, NEED_INIT);
    return info(kernel, index, offset, size);
}

SIM_API CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *size) {
    ENTER(cuFuncGetParamInfo, NEED_INIT);
    return info(function, index, offset, size);
}

static CUresult name_of(void *handle, const char **out) {
    LOCK();
    struct function *f = handle_get(KIND_FUNCTION, handle);
    UNLOCK();
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = f->kernel->name;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuKernelGetName(const char **out, CUkernel kernel) {
    ENTER(cuKernelGetName, NEED_INIT);
    return name_of(kernel, out);
}

SIM_API CUresult cuFuncGetName(const char **out, CUfunction function) {
    ENTER(cuFuncGetName, NEED_INIT);
    return name_of(function, out);
}

SIM_API CUresult cuFuncGetModule(CUmodule *out, CUfunction function) {
    ENTER(cuFuncGetModule, NEED_INIT);
    LOCK();
    struct function *f = handle_get(KIND_FUNCTION, function);
    UNLOCK();
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    *out = f->module;
    return CUDA_SUCCESS;
}

static CUresult attribute_of(void *handle, int attribute, int *out) {
    static const int values[16] = {1024, 0, 0, 0, 32, 90, 90, 0, 49152, -1};
    LOCK();
    struct function *f = handle_get(KIND_FUNCTION, handle);
    UNLOCK();
    if (!f) return CUDA_ERROR_INVALID_HANDLE;
    if (!out || attribute < 0 || attribute > 15) return CUDA_ERROR_INVALID_VALUE;
    *out = values[attribute];
    return CUDA_SUCCESS;
}

SIM_API CUresult cuFuncGetAttribute(int *out, int attribute, CUfunction function) {
    ENTER(cuFuncGetAttribute, NEED_INIT);
    return attribute_of(function, attribute, out);
}

SIM_API CUresult cuKernelGetAttribute(int *out, int attribute, CUkernel kernel, CUdevice dev) {
    ENTER(cuKernelGetAttribute, NEED_INIT);
    (void)dev;
    return attribute_of(kernel, attribute, out);
}

SIM_API CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value) {
    ENTER(cuFuncSetAttribute, NEED_INIT);
    int now;
    (void)value;
    return attribute_of(function, attribute, &now);
}

struct running { struct launch launch; const struct kernel *kernel; };

static void run(struct stream *s, struct op *op) {
    struct running *r = (struct running *)op->body;
    r->launch.stream = s;
    CUresult result = r->kernel->run(&r->launch);
    if (result == CUDA_SUCCESS) return;
    LOCK();
    ctx_fail(s->ctx, result);
    UNLOCK();
}

enum { PARAM_END = 0, PARAM_BUFFER_POINTER = 1, PARAM_BUFFER_SIZE = 2 };

// A program passes the parameters as an array of pointers to the values, or in one packed buffer.
static CUresult take_params(const struct kernel *k, void **params, void **extra, struct launch *l) {
    const char *buffer = NULL;
    size_t size = 0, at = 0;
    for (; extra && extra[0] != (void *)PARAM_END; extra += 2) {
        if (extra[0] == (void *)PARAM_BUFFER_POINTER) buffer = extra[1];
        else if (extra[0] == (void *)PARAM_BUFFER_SIZE) size = *(size_t *)extra[1];
        else return CUDA_ERROR_INVALID_VALUE;
    }
    if (k->params && !params && !buffer) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < k->params; i++) {
        size_t n = k->size[i];
        at = (at + n - 1) / n * n;
        if (!params && at + n > size) return CUDA_ERROR_INVALID_VALUE;
        memcpy(&l->param[i], params ? params[i] : buffer + at, n);
        at += n;
    }
    return CUDA_SUCCESS;
}

static CUresult launch(CUfunction function, const unsigned grid[3], const unsigned block[3], CUstream stream,
                       void **params, void **extra) {
    uint64_t blocks = (uint64_t)grid[0] * grid[1] * grid[2], threads = (uint64_t)block[0] * block[1] * block[2];
    if (!blocks || !threads || threads > 1024) return CUDA_ERROR_INVALID_VALUE;
    struct running r = {.launch.threads = blocks * threads};
    LOCK();
    struct function *f = handle_get(KIND_FUNCTION, function);
    struct stream *s;
    CUresult result = f ? stream_get(stream, &s) : CUDA_ERROR_INVALID_HANDLE;
    if (result == CUDA_SUCCESS) {
        r.kernel = f->kernel;
        result = take_params(f->kernel, params, extra, &r.launch);
    }
    if (result == CUDA_SUCCESS) {
        struct op *op = op_new(sizeof r, run);
        *(struct running *)op->body = r;
        stream_submit(s, op);
    }
    UNLOCK();
    return result;
}

SIM_API CUresult cuLaunchKernel(CUfunction function, unsigned int gx, unsigned int gy, unsigned int gz,
                                unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,
                                CUstream stream, void **params, void **extra) {
    ENTER(cuLaunchKernel, NEED_CTX);
    (void)shared;
    return launch(function, (unsigned[]){gx, gy, gz}, (unsigned[]){bx, by, bz}, stream, params, extra);
}

SIM_API CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **params, void **extra) {
    ENTER(cuLaunchKernelEx, NEED_CTX);
    if (!c) return CUDA_ERROR_INVALID_VALUE;
    const unsigned grid[3] = {c->gridDimX, c->gridDimY, c->gridDimZ};
    const unsigned block[3] = {c->blockDimX, c->blockDimY, c->blockDimZ};
    return launch(function, grid, block, c->hStream, params, extra);
}
