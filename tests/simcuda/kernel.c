// The kernels that the simulation can run; the kernels of package cuda/pattern are in kernels_pattern.c. To add a
// kernel, write it for the CPU and add it to the table, with the name of its PTX entry and the sizes of its parameters.
#include "kernel.h"

#include <string.h>
#include <time.h>

// Returns whether kernels of a context can access plain memory. Measured: memory that a process opened with a legacy handle belongs to
// the device whose context opened the handle, and peer access between contexts does not extend to this memory.
static bool reaches(const struct context *ctx, const struct range *g) {
    if (g->kind == RANGE_IPC) return g->ctx->device == ctx->device;
    return g->kind != RANGE_LINEAR || g->device == ctx->device || ctx->peers >> g->device & 1;
}

// Lets a kernel access memory. The driver refuses a copy that has no access to the memory. The driver does not refuse a kernel
// without access: the kernel and its context fail while the kernel runs.
CUresult kernel_memory(const struct launch *l, uint64_t address, uint64_t size, enum access access,
                       void (*fn)(uint8_t *at, uint64_t size, void *arg), void *arg) {
    LOCK();
    struct context *ctx = l->stream->ctx;
    CUresult r = range_check(address, size, access, ctx->device);
    struct range *g = range_find(address);
    if (r == CUDA_SUCCESS && !reaches(ctx, g)) r = CUDA_ERROR_ILLEGAL_ADDRESS;
    if (r != CUDA_SUCCESS) misuse_address("a kernel", address);
    UNLOCK();
    return r == CUDA_SUCCESS ? touch(address, size, fn, arg) : CUDA_ERROR_ILLEGAL_ADDRESS;
}

struct progression { uint32_t add, multiply, xor; uint64_t i; };

static void progress(uint8_t *at, uint64_t size, void *arg) {
    struct progression *p = arg;
    for (uint64_t k = 0; k < size; k += 4, p->i++) {
        uint32_t value = (p->multiply * (uint32_t)p->i + p->add) ^ p->xor;
        memcpy(at + k, &value, 4);
    }
}

// out[i] = (multiply * i + add) ^ xor, for i < n. The parameters are (pointer, n, multiply, add, xor).
static CUresult fill_u32_xor(const struct launch *l) {
    struct progression p = {(uint32_t)l->param[3], (uint32_t)l->param[2], (uint32_t)l->param[4], 0};
    uint64_t n = l->param[1] < l->threads ? l->param[1] : l->threads;
    return n ? kernel_memory(l, l->param[0], n * 4, ACCESS_WRITE, progress, &p) : CUDA_SUCCESS;
}

uint64_t kernel_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

CUresult kernel_spin(const struct launch *l) {
    uint64_t start = kernel_now();
    for (unsigned round = 0; kernel_now() - start < l->param[0] && !stream_failed(l->stream);) nap(&round);
    return CUDA_SUCCESS;
}

// out[i] = i * factor + bias, for i < n. The parameters are (pointer, n, factor, bias).
static CUresult scale(const struct launch *l) {
    struct progression p = {(uint32_t)l->param[3], (uint32_t)l->param[2], 0, 0};
    uint64_t n = l->param[1] < l->threads ? l->param[1] : l->threads;
    return n ? kernel_memory(l, l->param[0], n * 4, ACCESS_WRITE, progress, &p) : CUDA_SUCCESS;
}

// Writes one word. The parameters are (pointer, value).
static CUresult store(const struct launch *l) {
    struct progression p = {(uint32_t)l->param[1], 0, 0, 0};
    return kernel_memory(l, l->param[0], 4, ACCESS_WRITE, progress, &p);
}

// The kernels for the tests of driver calls; the kernels of package cuda/pattern are in kernels_pattern.c.
static const struct kernel kernels[] = {
    {"scale", 4, {8, 4, 4, 8}, scale},
    {"store", 2, {8, 4}, store},
    {"poolbridge_fill_u32_xor", 5, {8, 8, 4, 4, 4}, fill_u32_xor},
    {"poolbridge_spin_ns", 1, {8}, kernel_spin},
};

const struct kernel *kernel_find(const char *name) {
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(kernels[i].name, name) == 0) return &kernels[i];
    }
    for (const struct kernel *k = pattern_kernels; k->name; k++) {
        if (strcmp(k->name, name) == 0) return k;
    }
    return NULL;
}
