//go:build cgo && linux

package driver

/*
#cgo noescape pb_host_alloc
#cgo nocallback pb_host_alloc
#cgo nocallback pb_host_free
#cgo noescape pb_host_register
#cgo nocallback pb_host_register
#cgo nocallback pb_host_unregister
#include "driver.h"

static pb_status pb_host_alloc(uintptr_t ctx, uintptr_t *mem, uint64_t *ptr, uint64_t n) {
	void *p = NULL;
	CUdeviceptr d = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemHostAlloc, &p, n, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
	if (st == 0) {
		st = PB_CALL(cuMemHostGetDevicePointer, &d, p, 0);
		if (st != 0) {
			(void)PB_CALL(cuMemFreeHost, p);
			p = NULL;
		}
	}
	*mem = (uintptr_t)p;
	*ptr = d;
	return pb_leave(st);
}

PB_WRAP(pb_host_free, (uintptr_t ctx, uintptr_t mem), cuMemFreeHost, (void *)mem)

static pb_status pb_host_register(uintptr_t ctx, uint64_t *ptr, uintptr_t mem, uint64_t n, unsigned flags) {
	CUdeviceptr d = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemHostRegister, (void *)mem, n, flags);
	if (st == 0 && (flags & CU_MEMHOSTREGISTER_DEVICEMAP) != 0) {
		st = PB_CALL(cuMemHostGetDevicePointer, &d, (void *)mem, 0);
		if (st != 0)
			(void)PB_CALL(cuMemHostUnregister, (void *)mem);
	}
	*ptr = d;
	return pb_leave(st);
}

PB_WRAP(pb_host_unregister, (uintptr_t ctx, uintptr_t mem), cuMemHostUnregister, (void *)mem)
*/
import "C"

// HostAlloc calls cuMemHostAlloc with the flags for portable and mapped memory. It returns the address for the CPU (mem) and the address for the
// GPU (ptr).
func HostAlloc(ctx uintptr, n uint64) (mem uintptr, ptr uint64, _ Status) {
	var m C.uintptr_t
	var p C.uint64_t
	st := C.pb_host_alloc(C.uintptr_t(ctx), &m, &p, C.uint64_t(n))
	return uintptr(m), uint64(p), Status(st)
}

// HostFree calls cuMemFreeHost.
func HostFree(ctx, mem uintptr) Status {
	return Status(C.pb_host_free(C.uintptr_t(ctx), C.uintptr_t(mem)))
}

// HostRegister calls cuMemHostRegister. If flags contain CU_MEMHOSTREGISTER_DEVICEMAP, the result ptr is the address that the GPU uses.
// Otherwise ptr is 0.
func HostRegister(ctx, mem uintptr, n uint64, flags uint32) (ptr uint64, _ Status) {
	var p C.uint64_t
	st := C.pb_host_register(C.uintptr_t(ctx), &p, C.uintptr_t(mem), C.uint64_t(n), C.uint(flags))
	return uint64(p), Status(st)
}

// HostUnregister calls cuMemHostUnregister.
func HostUnregister(ctx, mem uintptr) Status {
	return Status(C.pb_host_unregister(C.uintptr_t(ctx), C.uintptr_t(mem)))
}
