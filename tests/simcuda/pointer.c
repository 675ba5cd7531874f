// Attributes of an address.
#include "pool.h"
#include "vmm.h"

#include <string.h>

static bool is_host(const struct range *g) {
    return g->kind == RANGE_HOST_ALLOC || g->kind == RANGE_HOST_REGISTERED || (g->backing && g->backing->host);
}

static unsigned handle_types(const struct range *g) {
    if (g->kind == RANGE_POOL) return g->pool->imported ? 0 : (unsigned)g->pool->handle_types;
    if (g->kind == RANGE_VMM) return (unsigned)((struct physical *)g->owner)->prop.requestedHandleTypes;
    return 0;
}

static int access_flags(const struct range *g) {
    struct context *ctx = ctx_current();
    int device = ctx ? ctx->device : g->device < 0 ? 0 : g->device;
    if (g->writable >> device & 1) return CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return g->readable >> device & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READ : CU_MEM_ACCESS_FLAGS_PROT_NONE;
}

struct part { uint64_t start, size; };

// Returns the range that the driver reports for an address in g. Measured: for virtual memory, this is the whole reservation; for a host
// pool, the start is 0.
static struct part extent(const struct range *g) {
    if (g->kind == RANGE_VMM) {
        struct part p = {g->start, g->size};
        reservation_of(g->start, &p.start, &p.size);
        return p;
    }
    if (g->kind == RANGE_POOL && g->backing->host) return (struct part){0, g->size};
    return (struct part){g->start, g->size};
}

// Returns the mapping that contains g.
static struct part mapping(const struct range *g) {
    uint64_t piece = g->kind == RANGE_POOL ? CHUNK : g->kind == RANGE_HOST_REGISTERED ? 4096 : 2 * MIB;
    uint64_t base = g->kind == RANGE_POOL ? g->pool->va : g->kind == RANGE_HOST_REGISTERED ? 0 : g->start;
    if (g->kind == RANGE_VMM) return (struct part){g->start, g->size};
    if (g->kind == RANGE_LINEAR || g->kind == RANGE_IPC) {
        return (struct part){g->start - g->offset, g->block_size};
    }
    uint64_t from = base + (g->start - base) / piece * piece;
    return (struct part){from, (g->start + g->size - from + piece - 1) / piece * piece};
}

// Writes the answer for a known address. The attribute determines the size of the answer, as in the driver.
static CUresult answer(struct range *g, int attribute, CUdeviceptr address, void *out) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(void **)out = g->kind == RANGE_POOL || g->kind == RANGE_VMM || !g->ctx ? NULL : g->ctx->handle;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)out = is_host(g) ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        if (g->kind == RANGE_VMM && !g->readable) return CUDA_ERROR_INVALID_VALUE;
        *(CUdeviceptr *)out = address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        if (!is_host(g) && g->kind != RANGE_MANAGED) return CUDA_ERROR_INVALID_VALUE;
        *(void **)out = (void *)address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS: *(int *)out = (int)(g->flags >> 31) | (g->kind == RANGE_MANAGED); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID: *(uint64_t *)out = g->serial; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(int *)out = g->kind == RANGE_MANAGED; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)out = g->device >= 0 ? g->device : g->ctx ? g->ctx->device : 0;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: *(int *)out = g->kind == RANGE_LINEAR; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR: *(CUdeviceptr *)out = extent(g).start; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE: *(size_t *)out = extent(g).size; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPED: *(int *)out = 1; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES: *(uint64_t *)out = handle_types(g); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE: *(int *)out = 0; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS: *(int *)out = access_flags(g); return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE: *(void **)out = g->pool ? g->pool->handle : NULL; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE: *(size_t *)out = mapping(g).size; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR: *(CUdeviceptr *)out = mapping(g).start; return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: *(uint64_t *)out = g->start >> 9; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr address) {
    ENTER(cuPointerGetAttribute, NEED_INIT);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find(address);
    CUresult r = g && !g->freed ? answer(g, attribute, address, out) : CUDA_ERROR_INVALID_VALUE;
    UNLOCK();
    return r;
}

static size_t width(int attribute) {
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID: return 8;
    default: return 4;
    }
}

// If a program asks for several attributes of an address that the driver does not know, the driver sets them to zero and
// returns no error.
SIM_API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **out, CUdeviceptr address) {
    ENTER(cuPointerGetAttributes, NEED_INIT);
    if (!attributes || !out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find(address);
    for (unsigned i = 0; i < count; i++) {
        if (g && !g->freed && answer(g, attributes[i], address, out[i]) == CUDA_SUCCESS) continue;
        memset(out[i], 0, width(attributes[i]));
        if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL) *(int *)out[i] = -2; // the driver's value for "no device"
    }
    UNLOCK();
    return CUDA_SUCCESS;
}

SIM_API CUresult cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address) {
    ENTER(cuPointerSetAttribute, NEED_INIT);
    if (!value || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find(address);
    if (g) g->flags = (g->flags & 0x7FFFFFFF) | (*(const int *)value ? 1u << 31 : 0);
    UNLOCK();
    return g ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
