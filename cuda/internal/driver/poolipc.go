//go:build cgo && linux

package driver

/*
#cgo noescape pb_pool_export_fd
#cgo nocallback pb_pool_export_fd
#cgo noescape pb_pool_import_fd
#cgo nocallback pb_pool_import_fd
#cgo noescape pb_pool_export_ptr
#cgo nocallback pb_pool_export_ptr
#cgo noescape pb_pool_import_ptr
#cgo nocallback pb_pool_import_ptr
#include <fcntl.h>
#include <string.h>
#include "driver.h"

static pb_status pb_pool_export_fd(uintptr_t ctx, int *fd, uintptr_t pool) {
	*fd = -1;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemPoolExportToShareableHandle, fd, (CUmemoryPool)pool, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (st == 0)
		fcntl(*fd, F_SETFD, FD_CLOEXEC);
	return pb_leave(st);
}

static pb_status pb_pool_import_fd(uintptr_t ctx, uintptr_t *pool, int fd) {
	CUmemoryPool p = NULL;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemPoolImportFromShareableHandle, &p, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	*pool = (uintptr_t)p;
	return pb_leave(st);
}

PB_WRAP(pb_pool_export_ptr, (uintptr_t ctx, void *data, uint64_t ptr), cuMemPoolExportPointer, (CUmemPoolPtrExportData *)data, ptr)

static pb_status pb_pool_import_ptr(uintptr_t ctx, uint64_t *ptr, uintptr_t pool, const void *data) {
	CUmemPoolPtrExportData d;
	memcpy(&d, data, sizeof(d));
	CUdeviceptr p = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemPoolImportPointer, &p, (CUmemoryPool)pool, &d);
	*ptr = p;
	return pb_leave(st);
}
*/
import "C"

import "unsafe"

// PoolExportFD calls cuMemPoolExportToShareableHandle. The file descriptor that it returns is closed on exec.
func PoolExportFD(ctx, pool uintptr) (int, Status) {
	var fd C.int
	st := C.pb_pool_export_fd(C.uintptr_t(ctx), &fd, C.uintptr_t(pool))
	return int(fd), Status(st)
}

// PoolImportFD calls cuMemPoolImportFromShareableHandle.
func PoolImportFD(ctx uintptr, fd int) (uintptr, Status) {
	var pool C.uintptr_t
	st := C.pb_pool_import_fd(C.uintptr_t(ctx), &pool, C.int(fd))
	return uintptr(pool), Status(st)
}

// PoolExportPtr calls cuMemPoolExportPointer.
func PoolExportPtr(ctx uintptr, ptr uint64) (data [64]byte, _ Status) {
	st := C.pb_pool_export_ptr(C.uintptr_t(ctx), unsafe.Pointer(&data), C.uint64_t(ptr))
	return data, Status(st)
}

// PoolImportPtr calls cuMemPoolImportPointer.
func PoolImportPtr(ctx, pool uintptr, data *[64]byte) (uint64, Status) {
	var ptr C.uint64_t
	st := C.pb_pool_import_ptr(C.uintptr_t(ctx), &ptr, C.uintptr_t(pool), unsafe.Pointer(data))
	return uint64(ptr), Status(st)
}
