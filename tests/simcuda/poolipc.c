// Shares pools, and pointers of pools, between processes.
#include "pool.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

// The data that names a part of a pool, with the same layout as the driver's data. The data contains no secret, and does
// not distinguish successive allocations at one address. A process that has the descriptor of the pool can make the data
// itself, and data of freed memory still works.
struct blob {
    uint64_t pid, pool, cookie, offset, size, chunk;
};
enum { UNTOUCHED = sizeof(CUmemPoolPtrExportData) - sizeof(struct blob) };
_Static_assert(UNTOUCHED == 16, "the driver leaves the last 16 bytes as they were");

SIM_API CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool pool, int type, unsigned long long flags) {
    ENTER(cuMemPoolExportToShareableHandle, NEED_INIT);
    if (!out || flags) return CUDA_ERROR_INVALID_VALUE;
    section_enter(SECTION_POOL, "cuMemPoolExportToShareableHandle");
    LOCK();
    struct pool *p;
    CUresult r = pool_get(pool, &p);
    bool may = r == CUDA_SUCCESS && !p->imported && type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR &&
        (p->handle_types & type);
    if (!may) {
        r = CUDA_ERROR_INVALID_VALUE;
    } else {
        int fd = fcntl(p->backing->fd, F_DUPFD, 3); // measured: the descriptor is not closed on exec
        if (fd < 0) r = CUDA_ERROR_OPERATING_SYSTEM;
        else *(int *)out = fd;
        p->exported = fd >= 0;
    }
    UNLOCK();
    section_leave(SECTION_POOL);
    return r;
}

struct search { uint64_t cookie; struct pool *found; };

static void match(void *object, void *arg) {
    struct pool *p = object;
    struct search *s = arg;
    if (p->imported && p->backing->header->cookie == s->cookie) s->found = p;
}

static CUresult import(int fd, CUmemoryPool *out) {
    struct pool *p;
    CUresult r = pool_open(fd, &p);
    if (r != CUDA_SUCCESS) return r;
    struct search s = {.cookie = p->backing->header->cookie};
    void *handle = p->handle;
    handle_drop(handle);
    handle_each(KIND_POOL, match, &s);
    if (s.found) {
        // Measured: another import returns the same handle. The process must destroy the handle as often as it imported
        // the pool.
        s.found->imports++;
        p->destroyed = true;
        p->pointers = 1;
        pool_unref_pointer(p);
        *out = s.found->handle;
        return CUDA_SUCCESS;
    }
    p->handle = handle_new(KIND_POOL, p);
    p->imports = 1;
    counts_live(LIVE_POOL_IMPORT, 1);
    *out = p->handle;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *handle, int type,
                                                    unsigned long long flags) {
    ENTER(cuMemPoolImportFromShareableHandle, NEED_INIT);
    if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
    if (!config.pools) return CUDA_ERROR_NOT_SUPPORTED;
    section_enter(SECTION_POOL, "cuMemPoolImportFromShareableHandle");
    LOCK();
    CUresult r = import((int)(intptr_t)handle, out);
    UNLOCK();
    section_leave(SECTION_POOL);
    return r;
}

SIM_API CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address) {
    ENTER(cuMemPoolExportPointer, NEED_INIT);
    if (!out) return CUDA_ERROR_INVALID_VALUE;
    section_enter(SECTION_POINTER, "cuMemPoolExportPointer");
    LOCK();
    CUresult r = CUDA_ERROR_INVALID_VALUE;
    struct range *g = range_find(address);
    if (!g || g->freed) {
        misuse_address("cuMemPoolExportPointer", address);
    } else if (g->start == address && g->kind == RANGE_POOL && g->pool->exported) {
        // Measured: the export of a pointer fails if the pool itself has not been exported.
        const struct shared_header *h = g->backing->header;
        struct blob b = {(uint64_t)h->exporter, h->number, h->cookie, g->offset, g->size,
                         h->tables->chunk_id[g->offset / CHUNK]};
        memcpy(out, &b, sizeof b);
        r = CUDA_SUCCESS;
    }
    UNLOCK();
    section_leave(SECTION_POINTER);
    return r;
}

static bool genuine(const struct blob *b, struct pool *p) {
    const struct shared_header *h = p->backing->header;
    if (b->pid != (uint64_t)h->exporter || b->pool != h->number || b->cookie != h->cookie) return false;
    if (!b->size || b->offset >= h->capacity || b->size > h->capacity - b->offset) return false;
    // Measured: a process that has mapped an allocation once can map it again, even after the exporter has freed the allocation.
    uint64_t i = b->offset / CHUNK;
    return b->chunk && (b->chunk == h->tables->chunk_id[i] || b->chunk == p->mapped[i]);
}

static CUresult import_pointer(CUdeviceptr *out, struct pool *p, const struct blob *b) {
    if (!p->imported || !genuine(b, p)) return CUDA_ERROR_INVALID_VALUE;
    uint64_t start = p->va + b->offset;
    struct range *known = range_find(start);
    if (known && !known->freed && known->start == start && known->size == b->size) {
        // Measured: the second import of a pointer returns the same address, and the first free ends both imports.
        misuse_report("double-import", "the pointer %#llx was imported again, and the first free ends both",
                      (unsigned long long)known->start);
        *out = known->start;
        return CUDA_SUCCESS;
    }
    // This process still has old allocations mapped whose memory the exporter has used again. Remove these allocations.
    for (struct range *old; (old = range_overlap(start, b->size)) != NULL;) {
        if (!old->freed) {
            claim_remove(p->backing->header->tables->claims, old->claim);
            counts_live(LIVE_POINTER_IMPORT, -1);
            p->pointers--;
            p->mapped_now--;
        }
        range_remove(old);
    }
    struct range g = {
        .start = start, .size = b->size, .kind = RANGE_POOL, .backing = p->backing, .offset = b->offset,
        .memory = p->backing->data + b->offset, .device = p->device, .readable = p->readable,
        .writable = p->writable, .ctx = ctx_current(), .pool = p, .block_size = b->size,
        .claim = claim_add(p->backing->header->tables->claims, b->offset, b->size),
    };
    range_add(&g);
    p->mapped[b->offset / CHUNK] = (uint32_t)b->chunk;
    p->pointers++;
    p->mapped_now++;
    counts_live(LIVE_POINTER_IMPORT, 1);
    *out = g.start;
    return CUDA_SUCCESS;
}

SIM_API CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool pool, CUmemPoolPtrExportData *data) {
    ENTER(cuMemPoolImportPointer, NEED_INIT);
    if (!out || !data) return CUDA_ERROR_INVALID_VALUE;
    struct blob b;
    memcpy(&b, data, sizeof b);
    section_enter(SECTION_POINTER, "cuMemPoolImportPointer");
    LOCK();
    struct pool *p;
    CUresult r = pool_get(pool, &p);
    if (r == CUDA_SUCCESS) r = import_pointer(out, p, &b);
    UNLOCK();
    section_leave(SECTION_POINTER);
    return r;
}
