// Virtual memory management: makes physical memory, and exports and imports its handles.
#include "vmm.h"

#include <fcntl.h>
#include <stdlib.h>

struct physical *physical_get(CUmemGenericAllocationHandle handle) {
    struct physical *p = handle_get(KIND_PHYSICAL, (void *)handle);
    return p && p->refs ? p : NULL;
}

void physical_settle(struct physical *p) {
    if (p->refs || p->maps) return;
    handle_drop(p->handle);
    if (p->imported) importer_remove(p->backing->header->importer);
    backing_unref(p->backing);
    free(p);
}

static CUresult check(const CUmemAllocationProp *prop) {
    if (!prop || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (prop->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    switch (prop->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return prop->location.id >= 0 && prop->location.id < config.devices ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return prop->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_API CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, int option) {
    ENTER(cuMemGetAllocationGranularity, NEED_INIT);
    if (!out || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = check(prop);
    if (r == CUDA_SUCCESS) *out = VMM_GRANULARITY;
    return r;
}

static struct physical *physical_make(struct backing *b, const CUmemAllocationProp *prop, bool imported) {
    struct physical *p = calloc(1, sizeof *p);
    if (!p) abort();
    *p = (struct physical){.backing = b, .prop = *prop, .size = b->capacity, .refs = 1, .imported = imported};
    p->handle = handle_new(KIND_PHYSICAL, p);
    counts_live(LIVE_PHYSICAL, 1);
    return p;
}

SIM_API CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop,
                             unsigned long long flags) {
    ENTER(cuMemCreate, NEED_INIT);
    if (!out || flags || !size || size % VMM_GRANULARITY) return CUDA_ERROR_INVALID_VALUE;
    CUresult r = check(prop);
    if (r != CUDA_SUCCESS) return r;
    bool host = prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (!host && !usage_take(prop->location.id, size)) return CUDA_ERROR_OUT_OF_MEMORY;
    LOCK();
    struct backing *b;
    r = backing_create(MEMORY_PHYSICAL, host ? -1 : prop->location.id, host, size, &b);
    if (r == CUDA_SUCCESS) {
        b->header->reserved = size;
        b->header->handle_types = prop->requestedHandleTypes;
        b->header->location_type = prop->location.type;
        *out = (CUmemGenericAllocationHandle)physical_make(b, prop, false)->handle;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(cuMemRelease, NEED_INIT);
    LOCK();
    struct physical *p = physical_get(handle);
    if (p) {
        if (--p->refs == 0) counts_live(LIVE_PHYSICAL, -1);
        physical_settle(p);
    } else {
        misuse_report("stale-handle", "cuMemRelease of %#llx, which is no allocation (any more)", handle);
    }
    UNLOCK();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
    ENTER(cuMemRetainAllocationHandle, NEED_INIT);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct range *g = range_find((uint64_t)address);
    struct physical *p = g && g->kind == RANGE_VMM ? g->owner : NULL;
    if (p) {
        if (p->refs++ == 0) counts_live(LIVE_PHYSICAL, 1);
        *out = (CUmemGenericAllocationHandle)p->handle;
    }
    UNLOCK();
    return p ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *out,
                                                        CUmemGenericAllocationHandle handle) {
    ENTER(cuMemGetAllocationPropertiesFromHandle, NEED_INIT);
    LOCK();
    struct physical *p = physical_get(handle);
    if (p && out) *out = p->prop;
    UNLOCK();
    return p && out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIM_API CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle, int type,
                                              unsigned long long flags) {
    ENTER(cuMemExportToShareableHandle, NEED_INIT);
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct physical *p = physical_get(handle);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    if (p && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR && (p->prop.requestedHandleTypes & type)) {
        int fd = fcntl(p->backing->fd, F_DUPFD_CLOEXEC, 3);
        r = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
        if (fd >= 0) *(int *)out = fd;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle, int type) {
    ENTER(cuMemImportFromShareableHandle, NEED_INIT);
    if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct backing *b;
    CUresult r = backing_import((int)(intptr_t)handle, MEMORY_PHYSICAL, &b);
    if (r == CUDA_SUCCESS) {
        CUmemAllocationProp prop = {
            .type = CU_MEM_ALLOCATION_TYPE_PINNED, // and no handle types: an imported allocation cannot be exported again
            .location = {b->header->location_type, b->device < 0 ? 0 : b->device},
        };
        importer_add(b->header->importer);
        *out = (CUmemGenericAllocationHandle)physical_make(b, &prop, true)->handle;
    }
    UNLOCK();
    return r;
}
