//go:build cgo && linux

package driver

/*
#cgo noescape pb_mem_alloc
#cgo nocallback pb_mem_alloc
#cgo nocallback pb_mem_free
#cgo noescape pb_mem_range
#cgo nocallback pb_mem_range
#cgo noescape pb_ipc_get
#cgo nocallback pb_ipc_get
#cgo noescape pb_ipc_open
#cgo nocallback pb_ipc_open
#cgo nocallback pb_ipc_close
#include <string.h>
#include "driver.h"

static pb_status pb_mem_alloc(uintptr_t ctx, uint64_t *ptr, uint64_t n) {
	CUdeviceptr p = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemAlloc, &p, n);
	*ptr = p;
	return pb_leave(st);
}

PB_WRAP(pb_mem_free, (uintptr_t ctx, uint64_t ptr), cuMemFree, ptr)

static pb_status pb_mem_range(uintptr_t ctx, uint64_t *base, uint64_t *n, uint64_t ptr) {
	CUdeviceptr b = 0;
	size_t size = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemGetAddressRange, &b, &size, ptr);
	*base = b;
	*n = size;
	return pb_leave(st);
}

PB_WRAP(pb_ipc_get, (uintptr_t ctx, void *handle, uint64_t ptr), cuIpcGetMemHandle, (CUipcMemHandle *)handle, ptr)

static pb_status pb_ipc_open(uintptr_t ctx, uint64_t *ptr, const void *handle) {
	CUipcMemHandle h;
	memcpy(&h, handle, sizeof(h));
	CUdeviceptr p = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuIpcOpenMemHandle, &p, h, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	*ptr = p;
	return pb_leave(st);
}

PB_WRAP(pb_ipc_close, (uintptr_t ctx, uint64_t ptr), cuIpcCloseMemHandle, ptr)
*/
import "C"

import "unsafe"

// MemAlloc calls cuMemAlloc.
func MemAlloc(ctx uintptr, n uint64) (uint64, Status) {
	var p C.uint64_t
	st := C.pb_mem_alloc(C.uintptr_t(ctx), &p, C.uint64_t(n))
	return uint64(p), Status(st)
}

// MemFree calls cuMemFree.
func MemFree(ctx uintptr, ptr uint64) Status {
	return Status(C.pb_mem_free(C.uintptr_t(ctx), C.uint64_t(ptr)))
}

// AddressRange calls cuMemGetAddressRange.
func AddressRange(ctx uintptr, ptr uint64) (base, n uint64, _ Status) {
	var b, size C.uint64_t
	st := C.pb_mem_range(C.uintptr_t(ctx), &b, &size, C.uint64_t(ptr))
	return uint64(b), uint64(size), Status(st)
}

// IPCMemHandle calls cuIpcGetMemHandle.
func IPCMemHandle(ctx uintptr, ptr uint64) (handle [64]byte, _ Status) {
	st := C.pb_ipc_get(C.uintptr_t(ctx), unsafe.Pointer(&handle), C.uint64_t(ptr))
	return handle, Status(st)
}

// IPCOpenMem calls cuIpcOpenMemHandle.
func IPCOpenMem(ctx uintptr, handle *[64]byte) (uint64, Status) {
	var p C.uint64_t
	st := C.pb_ipc_open(C.uintptr_t(ctx), &p, unsafe.Pointer(handle))
	return uint64(p), Status(st)
}

// IPCCloseMem calls cuIpcCloseMemHandle.
func IPCCloseMem(ctx uintptr, ptr uint64) Status {
	return Status(C.pb_ipc_close(C.uintptr_t(ctx), C.uint64_t(ptr)))
}
