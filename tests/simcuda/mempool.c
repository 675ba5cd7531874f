// Memory pools: how they are made and destroyed, their attributes, and the access of devices to them.
#include "pool.h"

#include <stdlib.h>
#include <string.h>

// The places of pools: the devices, and the host.
enum { HOST = MAX_DEVICES, HOST_NUMA, PLACES };
static struct pool *defaults[PLACES], *current[PLACES];

CUresult pool_get(CUmemoryPool handle, struct pool **out) {
    *out = handle_get(KIND_POOL, handle);
    return *out ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static struct pool *pool_over(struct backing *b) {
    struct pool *p = calloc(1, sizeof *p);
    if (!p) abort();
    p->backing = b;
    p->device = b->device;
    p->va = va_reserve(b->capacity, 2 * MIB, 0);
    if (!p->va || !va_expose(p->va, b, 0, b->capacity)) abort();
    p->chunks = calloc(1, b->capacity / CHUNK);
    p->mapped = calloc(b->capacity / CHUNK, sizeof *p->mapped);
    if (!p->chunks || !p->mapped) abort();
    for (int i = 1; i < 4; i++) p->reuse[i] = 1;
    // The pool's own device can access the pool from the start. No device can access a pool in host memory until a call
    // grants access.
    if (p->device >= 0) p->readable = p->writable = 1u << p->device;
    p->handle = handle_new(KIND_POOL, p);
    return p;
}

CUresult pool_make(const CUmemPoolProps *props, struct pool **out) {
    bool host = props->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    uint64_t limit = props->maxSize && props->maxSize < config.memory ? props->maxSize : config.memory;
    uint64_t capacity = (limit + CHUNK - 1) / CHUNK * CHUNK;
    struct backing *b;
    CUresult r = backing_create(MEMORY_POOL, host ? -1 : props->location.id, host, capacity, &b);
    if (r != CUDA_SUCCESS) return r;
    struct pool *p = pool_over(b);
    p->alloc_type = props->allocType;
    p->handle_types = props->handleTypes;
    p->location = props->location;
    static uint64_t made;
    b->header->number = ++made;
    b->header->location_type = props->location.type;
    b->header->location_id = props->location.id;
    b->header->handle_types = props->handleTypes;
    b->header->alloc_type = props->allocType;
    *out = p;
    return CUDA_SUCCESS;
}

CUresult pool_open(int fd, struct pool **out) {
    struct backing *b;
    CUresult r = backing_import(fd, MEMORY_POOL, &b);
    if (r != CUDA_SUCCESS) return r;
    struct pool *p = pool_over(b);
    p->imported = true;
    p->alloc_type = b->header->alloc_type;
    p->location = (CUmemLocation){b->header->location_type, p->device >= 0 ? p->device : b->header->location_id};
    *out = p;
    return CUDA_SUCCESS;
}

static void dispose(struct pool *p) {
    // Measured: the driver reserves the addresses of an imported host pool again, and calls them mapped.
    for (uint64_t i = 0; p->imported && p->device < 0 && i < p->backing->capacity / CHUNK; i++) {
        if (p->mapped[i]) va_spoil(p->va + i * CHUNK, CHUNK);
    }
    va_release(p->va, p->backing->capacity);
    if (!p->imported) p->backing->header->reserved = 0;
    backing_unref(p->backing);
    free(p->chunks);
    free(p->mapped);
    free(p);
}

void pool_unref_pointer(struct pool *p) {
    if (--p->pointers == 0 && p->destroyed) dispose(p);
}

struct pool *pool_default(int place) {
    if (!defaults[place]) {
        CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .location = {CU_MEM_LOCATION_TYPE_DEVICE, place}};
        if (place == HOST) props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST, 0};
        if (place == HOST_NUMA) props.location = (CUmemLocation){CU_MEM_LOCATION_TYPE_HOST_NUMA, 0};
        struct pool *p = NULL;
        if (pool_make(&props, &p) != CUDA_SUCCESS) return NULL;
        p->is_default = true;
        defaults[place] = p;
    }
    if (!current[place]) current[place] = defaults[place];
    return defaults[place];
}

static CUresult check_props(const CUmemPoolProps *props) {
    if (props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
    if (props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (props->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    switch (props->location.type) {
    case CU_MEM_LOCATION_TYPE_DEVICE:
        return props->location.id >= 0 && props->location.id < config.devices ? CUDA_SUCCESS
                                                                              : CUDA_ERROR_INVALID_VALUE;
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return props->location.id == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; // the machine has one NUMA node
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
        return props->handleTypes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_API CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
    ENTER(cuMemPoolCreate, NEED_INIT);
    if (!out || !props) return CUDA_ERROR_INVALID_VALUE;
    if (!config.pools) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult r = check_props(props);
    if (r != CUDA_SUCCESS) return r;
    LOCK();
    struct pool *p;
    r = pool_make(props, &p);
    if (r == CUDA_SUCCESS) {
        *out = p->handle;
        counts_live(LIVE_POOL, 1);
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    ENTER(cuMemPoolDestroy, NEED_INIT);
    section_enter(SECTION_POOL, "cuMemPoolDestroy");
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    if (r != CUDA_SUCCESS) misuse_report("stale-handle", "cuMemPoolDestroy of %p, which is no pool", (void *)handle);
    else if (p->is_default) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        if (p->mapped_now) {
            misuse_report("wrong-order", "cuMemPoolDestroy of %s pool with %d pointer(s) not freed",
                          p->imported ? "an imported" : "a", p->mapped_now);
        }
        // Measured: the driver does not destroy an imported pool while one of its pointers is mapped. The pool still
        // works.
        if (p->imported && p->mapped_now) r = CUDA_ERROR_INVALID_VALUE;
    }
    if (r == CUDA_SUCCESS && !(p->imported && --p->imports)) {
        for (int i = 0; i < config.devices; i++) {
            if (current[i] == p) current[i] = defaults[i];
        }
        handle_drop(handle);
        counts_live(p->imported ? LIVE_POOL_IMPORT : LIVE_POOL, -1);
        p->destroyed = true;
        if (!p->pointers) dispose(p);
    }
    UNLOCK();
    section_leave(SECTION_POOL);
    return r;
}

static CUresult pool_of_place(CUmemoryPool *out, int place, bool now) {
    if (!config.pools) return CUDA_ERROR_NOT_SUPPORTED;
    LOCK();
    struct pool *p = pool_default(place);
    if (p) *out = (now ? current[place] : p)->handle;
    UNLOCK();
    return p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult device_pool(CUmemoryPool *out, CUdevice dev, bool now) {
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    return dev < 0 || dev >= config.devices ? CUDA_ERROR_INVALID_DEVICE : pool_of_place(out, dev, now);
}

SIM_API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev) {
    ENTER(cuDeviceGetDefaultMemPool, NEED_INIT);
    return device_pool(out, dev, false);
}

SIM_API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev) {
    ENTER(cuDeviceGetMemPool, NEED_INIT);
    return device_pool(out, dev, true);
}

SIM_API CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *location, int type) {
    ENTER(cuMemGetMemPool, NEED_INIT);
    if (!out || !location) return CUDA_ERROR_INVALID_VALUE;
    if (type == CU_MEM_ALLOCATION_TYPE_MANAGED) return CUDA_ERROR_NOT_SUPPORTED;
    if (type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    switch (location->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: return device_pool(out, location->id, true);
    case CU_MEM_LOCATION_TYPE_HOST: return pool_of_place(out, HOST, true);
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
        return location->id == 0 ? pool_of_place(out, HOST_NUMA, true) : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

SIM_API CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool handle) {
    ENTER(cuDeviceSetMemPool, NEED_INIT);
    if (dev < 0 || dev >= config.devices) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    if (r == CUDA_SUCCESS && (p->device != dev || p->imported)) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && pool_default(dev)) current[dev] = p;
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
    ENTER(cuMemPoolTrimTo, NEED_INIT);
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    if (r == CUDA_SUCCESS && p->imported) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) pool_trim(p, keep);
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemPoolSetAttribute(CUmemoryPool handle, int attribute, void *value) {
    ENTER(cuMemPoolSetAttribute, NEED_INIT);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    if (r == CUDA_SUCCESS && p->imported) r = CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS) {
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: p->reuse[attribute] = *(int *)value != 0; break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: p->threshold = *(uint64_t *)value; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            // A high watermark can only be reset.
            if (*(uint64_t *)value != 0) r = CUDA_ERROR_INVALID_VALUE;
            else if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH) p->used_high = p->used;
            else p->reserved_high = p->reserved;
            break;
        default: r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemPoolGetAttribute(CUmemoryPool handle, int attribute, void *value) {
    ENTER(cuMemPoolGetAttribute, NEED_INIT);
    if (!value) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    if (r == CUDA_SUCCESS && p->imported) r = CUDA_ERROR_INVALID_VALUE; // measured: the driver refuses every attribute of an imported pool
    if (r == CUDA_SUCCESS) {
        uint64_t *wide = value;
        switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES: *(int *)value = p->reuse[attribute]; break;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *wide = p->threshold; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *wide = p->reserved; break;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *wide = p->reserved_high; break;
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *wide = p->used; break;
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *wide = p->used_high; break;
        default: r = CUDA_ERROR_INVALID_VALUE;
        }
    }
    UNLOCK();
    return r;
}

static CUresult set_access(struct pool *p, const CUmemAccessDesc *desc) {
    int device = desc->location.id;
    if (desc->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_NOT_SUPPORTED;
    if (device < 0 || device >= config.devices) return CUDA_ERROR_INVALID_DEVICE;
    if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_READ) return CUDA_ERROR_NOT_SUPPORTED; // measured: a pool has no read-only access
    if (desc->flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        if (device == p->device) return CUDA_ERROR_INVALID_DEVICE;
        p->readable &= ~(1u << device);
        p->writable &= ~(1u << device);
        return CUDA_SUCCESS;
    }
    if (desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return CUDA_ERROR_INVALID_VALUE;
    if (p->device >= 0 && device != p->device && !config.peer) return CUDA_ERROR_INVALID_DEVICE;
    // Measured: while a process maps memory of an imported host pool, the process can give access to one GPU, but not to a second GPU.
    if (p->device < 0 && p->imported && p->mapped_now && p->writable & ~(1u << device) && !(p->writable >> device & 1))
        return CUDA_ERROR_ALREADY_MAPPED;
    p->readable |= 1u << device;
    p->writable |= 1u << device;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolSetAccess(CUmemoryPool handle, const CUmemAccessDesc *map, size_t count) {
    ENTER(cuMemPoolSetAccess, NEED_INIT);
    if (!map || !count) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) r = set_access(p, &map[i]);
    if (r == CUDA_SUCCESS) {
        for (struct range *g = range_first(); g; g = range_next(g)) {
            if (g->pool != p) continue;
            g->readable = p->readable;
            g->writable = p->writable;
        }
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool handle, CUmemLocation *location) {
    ENTER(cuMemPoolGetAccess, NEED_INIT);
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (location->id < 0 || location->id >= config.devices) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    struct pool *p;
    CUresult r = pool_get(handle, &p);
    if (r == CUDA_SUCCESS) {
        *flags = p->writable >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream stream) {
    ENTER(cuMemAllocAsync, NEED_INIT);
    CUresult pool_alloc(CUdeviceptr *out, size_t size, struct pool *p, struct stream *s);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    if (!config.pools) return CUDA_ERROR_NOT_SUPPORTED;
    LOCK();
    struct stream *s;
    CUresult r = stream_get(stream, &s);
    if (r == CUDA_SUCCESS) {
        if (pool_default(s->ctx->device)) r = pool_alloc(out, size, current[s->ctx->device], s);
        else r = CUDA_ERROR_OUT_OF_MEMORY;
    }
    UNLOCK();
    return r;
}
