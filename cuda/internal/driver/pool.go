//go:build cgo && linux

package driver

/*
#cgo noescape pb_pool_create
#cgo nocallback pb_pool_create
#cgo nocallback pb_pool_destroy
#cgo nocallback pb_pool_trim
#cgo noescape pb_pool_attribute
#cgo nocallback pb_pool_attribute
#cgo nocallback pb_pool_set_attribute
#cgo nocallback pb_pool_set_access
#cgo noescape pb_pool_access
#cgo nocallback pb_pool_access
#cgo noescape pb_pool_alloc
#cgo nocallback pb_pool_alloc
#cgo nocallback pb_pool_free
#include <string.h>
#include "driver.h"

static pb_status pb_pool_create(uintptr_t ctx, uintptr_t *pool, int type, int id, uint64_t max, uint64_t threshold, int exportable) {
	CUmemPoolProps props;
	memset(&props, 0, sizeof(props));
	props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
	props.handleTypes = exportable ? CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR : CU_MEM_HANDLE_TYPE_NONE;
	props.location.type = type;
	props.location.id = id;
	props.maxSize = max;

	CUmemoryPool p = NULL;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemPoolCreate, &p, &props);
	if (st == 0 && threshold != 0) {
		st = PB_CALL(cuMemPoolSetAttribute, p, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
		if (st != 0) {
			(void)PB_CALL(cuMemPoolDestroy, p);
			p = NULL;
		}
	}
	*pool = (uintptr_t)p;
	return pb_leave(st);
}

PB_WRAP(pb_pool_destroy, (uintptr_t ctx, uintptr_t pool), cuMemPoolDestroy, (CUmemoryPool)pool)
PB_WRAP(pb_pool_trim, (uintptr_t ctx, uintptr_t pool, uint64_t keep), cuMemPoolTrimTo, (CUmemoryPool)pool, keep)
PB_WRAP(pb_pool_attribute, (uintptr_t ctx, uint64_t *v, uintptr_t pool, int attr), cuMemPoolGetAttribute, (CUmemoryPool)pool, attr, v)
PB_WRAP(pb_pool_set_attribute, (uintptr_t ctx, uintptr_t pool, int attr, uint64_t v), cuMemPoolSetAttribute, (CUmemoryPool)pool, attr, &v)

static pb_status pb_pool_set_access(uintptr_t ctx, uintptr_t pool, int type, int id, int flags) {
	CUmemAccessDesc desc = { { type, id }, flags };
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuMemPoolSetAccess, (CUmemoryPool)pool, &desc, 1));
}

static pb_status pb_pool_access(uintptr_t ctx, int *flags, uintptr_t pool, int type, int id) {
	CUmemLocation where = { type, id };
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuMemPoolGetAccess, flags, (CUmemoryPool)pool, &where));
}

static pb_status pb_pool_alloc(uintptr_t ctx, uint64_t *ptr, uint64_t size, uintptr_t pool, uintptr_t s) {
	CUdeviceptr p = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemAllocFromPoolAsync, &p, size, (CUmemoryPool)pool, (CUstream)s);
	*ptr = p;
	return pb_leave(st);
}

PB_WRAP(pb_pool_free, (uintptr_t ctx, uint64_t ptr, uintptr_t s), cuMemFreeAsync, ptr, (CUstream)s)
*/
import "C"

// PoolCreate calls cuMemPoolCreate. If the release threshold in p is not 0, PoolCreate also sets it in the pool.
func PoolCreate(ctx uintptr, p PoolProps) (uintptr, Status) {
	var pool C.uintptr_t
	st := C.pb_pool_create(C.uintptr_t(ctx), &pool, C.int(p.Location.Type), C.int(p.Location.ID),
		C.uint64_t(p.MaxSize), C.uint64_t(p.ReleaseThreshold), flag(p.Exportable))
	return uintptr(pool), Status(st)
}

// PoolDestroy calls cuMemPoolDestroy.
func PoolDestroy(ctx, pool uintptr) Status {
	return Status(C.pb_pool_destroy(C.uintptr_t(ctx), C.uintptr_t(pool)))
}

// PoolTrim calls cuMemPoolTrimTo.
func PoolTrim(ctx, pool uintptr, keep uint64) Status {
	return Status(C.pb_pool_trim(C.uintptr_t(ctx), C.uintptr_t(pool), C.uint64_t(keep)))
}

// PoolAttribute calls cuMemPoolGetAttribute for a 64-bit attribute.
func PoolAttribute(ctx, pool uintptr, attr int) (uint64, Status) {
	var v C.uint64_t
	st := C.pb_pool_attribute(C.uintptr_t(ctx), &v, C.uintptr_t(pool), C.int(attr))
	return uint64(v), Status(st)
}

// PoolSetAttribute calls cuMemPoolSetAttribute for a 64-bit attribute.
func PoolSetAttribute(ctx, pool uintptr, attr int, v uint64) Status {
	return Status(C.pb_pool_set_attribute(C.uintptr_t(ctx), C.uintptr_t(pool), C.int(attr), C.uint64_t(v)))
}

// PoolSetAccess calls cuMemPoolSetAccess for one location.
func PoolSetAccess(ctx, pool uintptr, where Location, flags int) Status {
	return Status(C.pb_pool_set_access(C.uintptr_t(ctx), C.uintptr_t(pool), C.int(where.Type), C.int(where.ID), C.int(flags)))
}

// PoolAccess calls cuMemPoolGetAccess.
func PoolAccess(ctx, pool uintptr, where Location) (int, Status) {
	var flags C.int
	st := C.pb_pool_access(C.uintptr_t(ctx), &flags, C.uintptr_t(pool), C.int(where.Type), C.int(where.ID))
	return int(flags), Status(st)
}

// PoolAlloc calls cuMemAllocFromPoolAsync.
func PoolAlloc(ctx, pool, s uintptr, size uint64) (uint64, Status) {
	var ptr C.uint64_t
	st := C.pb_pool_alloc(C.uintptr_t(ctx), &ptr, C.uint64_t(size), C.uintptr_t(pool), C.uintptr_t(s))
	return uint64(ptr), Status(st)
}

// PoolFree calls cuMemFreeAsync.
func PoolFree(ctx, s uintptr, ptr uint64) Status {
	return Status(C.pb_pool_free(C.uintptr_t(ctx), C.uint64_t(ptr), C.uintptr_t(s)))
}
