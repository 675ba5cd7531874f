// Virtual memory management: reserves addresses, maps memory at these addresses, and sets the access to the memory.
#include "vmm.h"

#include <stdlib.h>

struct reservation { struct reservation *next; uint64_t start, size; };
static struct reservation *reservations;

static struct reservation **reservation_at(uint64_t start, uint64_t size) {
    for (struct reservation **link = &reservations; *link; link = &(*link)->next) {
        struct reservation *v = *link;
        if (v->start <= start && start + size <= v->start + v->size) return link;
    }
    return NULL;
}

bool reservation_of(uint64_t address, uint64_t *start, uint64_t *size) {
    struct reservation **link = reservation_at(address, 1);
    if (!link) return false;
    *start = (*link)->start;
    *size = (*link)->size;
    return true;
}

SIM_API CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr hint,
                                     unsigned long long flags) {
    ENTER(cuMemAddressReserve, NEED_INIT);
    if (!out || flags || !size || size % VMM_GRANULARITY || (align & (align - 1))) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    uint64_t start = va_reserve(size, align, hint);
    if (start) {
        struct reservation *v = malloc(sizeof *v);
        if (!v) abort();
        *v = (struct reservation){reservations, start, size};
        reservations = v;
        *out = start;
        counts_live(LIVE_RESERVATION, 1);
    }
    UNLOCK();
    return start ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

SIM_API CUresult cuMemAddressFree(CUdeviceptr start, size_t size) {
    ENTER(cuMemAddressFree, NEED_INIT);
    LOCK();
    struct reservation **link = reservation_at(start, size);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    if (link && (*link)->start == start && (*link)->size == size) {
        if (range_overlap(start, size)) {
            misuse_report("wrong-order", "cuMemAddressFree of %#llx while memory is mapped there", start);
        } else {
            struct reservation *v = *link;
            *link = v->next;
            free(v);
            va_release(start, size);
            counts_live(LIVE_RESERVATION, -1);
            r = CUDA_SUCCESS;
        }
    }
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemMap(CUdeviceptr start, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    ENTER(cuMemMap, NEED_INIT);
    if (flags || !size || size % VMM_GRANULARITY || start % VMM_GRANULARITY) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    struct physical *p = physical_get(handle);
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    if (p && (offset || size != p->size)) {
        r = CUDA_ERROR_NOT_SUPPORTED; // measured: a mapping must contain the whole physical memory
    } else if (p && reservation_at(start, size)) {
        r = range_overlap(start, size) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    }
    if (r == CUDA_SUCCESS) {
        struct range g = {
            .start = start, .size = size, .kind = RANGE_VMM, .backing = p->backing, .offset = offset,
            .memory = p->backing->data + offset, .device = p->backing->device, .owner = p, .block_size = size,
        };
        range_add(&g);
        p->maps++;
        counts_live(LIVE_MAPPING, 1);
    }
    UNLOCK();
    return r;
}

// Returns whether the `size` bytes at `start` consist of whole mappings, without gaps.
static bool covered(uint64_t start, uint64_t size) {
    uint64_t at = start;
    while (at < start + size) {
        struct range *g = range_find(at);
        if (!g || g->kind != RANGE_VMM || g->start != at) return false;
        at += g->size;
    }
    return at == start + size;
}

SIM_API CUresult cuMemUnmap(CUdeviceptr start, size_t size) {
    ENTER(cuMemUnmap, NEED_INIT);
    LOCK();
    // Measured: unmapping a part of a reservation where nothing is mapped succeeds.
    bool nothing = size && reservation_at(start, size) && !range_overlap(start, size);
    CUresult r = nothing || (size && covered(start, size)) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (nothing || r != CUDA_SUCCESS) misuse_address("cuMemUnmap", start);
    while (r == CUDA_SUCCESS) {
        struct range *g = range_overlap(start, size);
        if (!g) break;
        struct physical *p = g->owner;
        va_hide(g->start, g->size);
        range_remove(g);
        counts_live(LIVE_MAPPING, -1);
        p->maps--;
        physical_settle(p);
    }
    UNLOCK();
    return r;
}

static CUresult set_access(uint64_t start, uint64_t size, const CUmemAccessDesc *d) {
    bool host = d->location.type == CU_MEM_LOCATION_TYPE_HOST || d->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA;
    if (d->flags != 0 && d->flags != 1 && d->flags != 3) return CUDA_ERROR_INVALID_VALUE;
    if (!host && d->location.type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (!host && (d->location.id < 0 || d->location.id >= config.devices)) return CUDA_ERROR_INVALID_DEVICE;
    for (struct range *g = range_overlap(start, size); g && g->start < start + size; g = range_next(g)) {
        if (host && !g->backing->host) return CUDA_ERROR_NOT_SUPPORTED;
        if (!host && g->device >= 0 && g->device != d->location.id && !config.peer) return CUDA_ERROR_INVALID_DEVICE;
    }
    for (struct range *g = range_overlap(start, size); g && g->start < start + size; g = range_next(g)) {
        if (host || config.host_access) {
            bool readonly = g->backing->readonly;
            g->backing->readonly = d->flags == CU_MEM_ACCESS_FLAGS_PROT_READ;
            if (d->flags) va_expose(g->start, g->backing, g->offset, g->size);
            else va_hide(g->start, g->size);
            g->backing->readonly = readonly;
        }
        if (host) continue;
        uint32_t bit = 1u << d->location.id;
        g->readable = d->flags ? g->readable | bit : g->readable & ~bit;
        g->writable = d->flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE ? g->writable | bit : g->writable & ~bit;
    }
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemSetAccess(CUdeviceptr start, size_t size, const CUmemAccessDesc *descs, size_t count) {
    ENTER(cuMemSetAccess, NEED_INIT);
    if (!descs || !count) return CUDA_ERROR_INVALID_VALUE;
    LOCK();
    CUresult r = size && covered(start, size) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (r == CUDA_SUCCESS && va_is_spoiled(start, size)) r = CUDA_ERROR_ALREADY_MAPPED;
    for (size_t i = 0; i < count && r == CUDA_SUCCESS; i++) r = set_access(start, size, &descs[i]);
    UNLOCK();
    return r;
}

SIM_API CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr address) {
    ENTER(cuMemGetAccess, NEED_INIT);
    if (!flags || !location || location->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (location->id < 0 || location->id >= config.devices) return CUDA_ERROR_INVALID_DEVICE;
    LOCK();
    struct range *g = range_find(address);
    bool known = g && g->kind == RANGE_VMM;
    if (known) {
        *flags = g->writable >> location->id & 1 ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE
            : g->readable >> location->id & 1    ? CU_MEM_ACCESS_FLAGS_PROT_READ
                                                 : CU_MEM_ACCESS_FLAGS_PROT_NONE;
    }
    UNLOCK();
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
