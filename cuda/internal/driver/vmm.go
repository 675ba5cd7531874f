//go:build cgo && linux

package driver

/*
#cgo noescape pb_vmm_granularity
#cgo nocallback pb_vmm_granularity
#cgo noescape pb_vmm_create
#cgo nocallback pb_vmm_create
#cgo nocallback pb_vmm_release
#cgo noescape pb_vmm_export
#cgo nocallback pb_vmm_export
#cgo noescape pb_vmm_import
#cgo nocallback pb_vmm_import
#cgo noescape pb_vmm_map
#cgo nocallback pb_vmm_map
#cgo nocallback pb_vmm_unmap
#cgo nocallback pb_vmm_release_range
#cgo nocallback pb_vmm_set_access
#include <fcntl.h>
#include <string.h>
#include "driver.h"

static CUmemAllocationProp pb_vmm_prop(int dev) {
	CUmemAllocationProp prop;
	memset(&prop, 0, sizeof(prop));
	prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
	prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	prop.location.id = dev;
	return prop;
}

static pb_status pb_vmm_granularity(uintptr_t ctx, uint64_t *n, int dev) {
	CUmemAllocationProp prop = pb_vmm_prop(dev);
	size_t g = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemGetAllocationGranularity, &g, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
	*n = g;
	return pb_leave(st);
}

static pb_status pb_vmm_create(uintptr_t ctx, uint64_t *h, int dev, uint64_t n) {
	CUmemAllocationProp prop = pb_vmm_prop(dev);
	CUmemGenericAllocationHandle handle = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemCreate, &handle, n, &prop, 0);
	*h = handle;
	return pb_leave(st);
}

PB_WRAP(pb_vmm_release, (uintptr_t ctx, uint64_t h), cuMemRelease, h)

static pb_status pb_vmm_export(uintptr_t ctx, int *fd, uint64_t h) {
	*fd = -1;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemExportToShareableHandle, fd, h, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
	if (st == 0)
		fcntl(*fd, F_SETFD, FD_CLOEXEC);
	return pb_leave(st);
}

static pb_status pb_vmm_import(uintptr_t ctx, uint64_t *h, int fd) {
	CUmemGenericAllocationHandle handle = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
	*h = handle;
	return pb_leave(st);
}

static pb_status pb_vmm_access(uint64_t ptr, uint64_t n, int dev, int flags) {
	CUmemAccessDesc desc = { { CU_MEM_LOCATION_TYPE_DEVICE, dev }, flags };
	return PB_CALL(cuMemSetAccess, ptr, n, &desc, 1);
}

// pb_vmm_map reserves an address range, maps the memory there and grants access to it. If a step fails, pb_vmm_map undoes the earlier steps. If
// the driver calls the range mapped, pb_vmm_map leaves it reserved and returns its address.
static pb_status pb_vmm_map(uintptr_t ctx, uint64_t *ptr, uint64_t h, uint64_t n, int dev, int flags) {
	CUdeviceptr p = 0;
	*ptr = 0;
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemAddressReserve, &p, n, 0, 0, 0);
	if (st != 0)
		return pb_leave(st);
	st = PB_CALL(cuMemMap, p, n, 0, h, 0);
	if (st == 0) {
		st = pb_vmm_access(p, n, dev, flags);
		if (st != 0)
			(void)PB_CALL(cuMemUnmap, p, n);
	}
	if (st == 0 || (uint32_t)st == CUDA_ERROR_ALREADY_MAPPED)
		*ptr = p;
	else
		(void)PB_CALL(cuMemAddressFree, p, n);
	return pb_leave(st);
}

PB_WRAP(pb_vmm_unmap, (uintptr_t ctx, uint64_t ptr, uint64_t n), cuMemUnmap, ptr, n)
PB_WRAP(pb_vmm_release_range, (uintptr_t ctx, uint64_t ptr, uint64_t n), cuMemAddressFree, ptr, n)

static pb_status pb_vmm_set_access(uintptr_t ctx, uint64_t ptr, uint64_t n, int dev, int flags) {
	PB_ENTER(ctx);
	return pb_leave(pb_vmm_access(ptr, n, dev, flags));
}
*/
import "C"

// VMMGranularity calls cuMemGetAllocationGranularity and returns the minimum granularity.
func VMMGranularity(ctx uintptr, dev int32) (uint64, Status) {
	var n C.uint64_t
	st := C.pb_vmm_granularity(C.uintptr_t(ctx), &n, C.int(dev))
	return uint64(n), Status(st)
}

// VMMCreate calls cuMemCreate. The memory is on the device dev, and VMMExport can export this memory.
func VMMCreate(ctx uintptr, dev int32, n uint64) (uint64, Status) {
	var h C.uint64_t
	st := C.pb_vmm_create(C.uintptr_t(ctx), &h, C.int(dev), C.uint64_t(n))
	return uint64(h), Status(st)
}

// VMMRelease calls cuMemRelease.
func VMMRelease(ctx uintptr, h uint64) Status {
	return Status(C.pb_vmm_release(C.uintptr_t(ctx), C.uint64_t(h)))
}

// VMMExport calls cuMemExportToShareableHandle. The file descriptor that it returns is closed on exec.
func VMMExport(ctx uintptr, h uint64) (int, Status) {
	var fd C.int
	st := C.pb_vmm_export(C.uintptr_t(ctx), &fd, C.uint64_t(h))
	return int(fd), Status(st)
}

// VMMImport calls cuMemImportFromShareableHandle.
func VMMImport(ctx uintptr, fd int) (uint64, Status) {
	var h C.uint64_t
	st := C.pb_vmm_import(C.uintptr_t(ctx), &h, C.int(fd))
	return uint64(h), Status(st)
}

// VMMMap reserves an address range, maps the memory of the handle h to this range, and gives the device access. If the driver calls the range
// mapped, the caller must release the range.
func VMMMap(ctx uintptr, h, n uint64, dev int32, flags int) (uint64, Status) {
	var ptr C.uint64_t
	st := C.pb_vmm_map(C.uintptr_t(ctx), &ptr, C.uint64_t(h), C.uint64_t(n), C.int(dev), C.int(flags))
	return uint64(ptr), Status(st)
}

// VMMUnmap calls cuMemUnmap. The address range stays reserved.
func VMMUnmap(ctx uintptr, ptr, n uint64) Status {
	return Status(C.pb_vmm_unmap(C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(n)))
}

// VMMReleaseRange calls cuMemAddressFree.
func VMMReleaseRange(ctx uintptr, ptr, n uint64) Status {
	return Status(C.pb_vmm_release_range(C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(n)))
}

// VMMSetAccess calls cuMemSetAccess for one device.
func VMMSetAccess(ctx uintptr, ptr, n uint64, dev int32, flags int) Status {
	return Status(C.pb_vmm_set_access(C.uintptr_t(ctx), C.uint64_t(ptr), C.uint64_t(n), C.int(dev), C.int(flags)))
}
