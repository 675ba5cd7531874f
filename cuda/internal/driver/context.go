//go:build cgo && linux

package driver

/*
#cgo noescape pb_primary_retain
#cgo nocallback pb_primary_retain
#cgo nocallback pb_primary_release
#cgo noescape pb_ctx_create
#cgo nocallback pb_ctx_create
#cgo nocallback pb_ctx_destroy
#cgo nocallback pb_ctx_synchronize
#cgo noescape pb_mem_info
#cgo nocallback pb_mem_info
#cgo noescape pb_current
#cgo nocallback pb_current
#include "driver.h"

static pb_status pb_primary_retain(uintptr_t *ctx, int dev) {
	return PB_CALL(cuDevicePrimaryCtxRetain, (CUcontext *)ctx, dev);
}

static pb_status pb_primary_release(int dev) { return PB_CALL(cuDevicePrimaryCtxRelease, dev); }

// cuCtxCreate makes the new context current. pb_left pops it from the thread's stack again.
static pb_status pb_ctx_create(uintptr_t *ctx, int dev) {
	pb_status st = PB_CALL(cuCtxCreate, (CUcontext *)ctx, 0, dev);
	return st != 0 ? st : pb_left((CUcontext)*ctx, 0);
}

static pb_status pb_ctx_destroy(uintptr_t ctx) { return PB_CALL(cuCtxDestroy, (CUcontext)ctx); }

static pb_status pb_ctx_synchronize(uintptr_t ctx) {
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuCtxSynchronize));
}

PB_WRAP(pb_mem_info, (uintptr_t ctx, size_t *unused, size_t *total), cuMemGetInfo, unused, total)

static pb_status pb_current(uintptr_t *ctx) { return PB_CALL(cuCtxGetCurrent, (CUcontext *)ctx); }
*/
import "C"

// PrimaryRetain calls cuDevicePrimaryCtxRetain.
func PrimaryRetain(dev int32) (uintptr, Status) {
	var ctx C.uintptr_t
	st := C.pb_primary_retain(&ctx, C.int(dev))
	return uintptr(ctx), Status(st)
}

// PrimaryRelease calls cuDevicePrimaryCtxRelease.
func PrimaryRelease(dev int32) Status { return Status(C.pb_primary_release(C.int(dev))) }

// CtxCreate calls cuCtxCreate. After CtxCreate, the thread has the same current context as before.
func CtxCreate(dev int32) (uintptr, Status) {
	var ctx C.uintptr_t
	st := C.pb_ctx_create(&ctx, C.int(dev))
	return uintptr(ctx), Status(st)
}

// CtxDestroy calls cuCtxDestroy.
func CtxDestroy(ctx uintptr) Status { return Status(C.pb_ctx_destroy(C.uintptr_t(ctx))) }

// CtxSynchronize calls cuCtxSynchronize.
func CtxSynchronize(ctx uintptr) Status { return Status(C.pb_ctx_synchronize(C.uintptr_t(ctx))) }

// MemInfo calls cuMemGetInfo.
func MemInfo(ctx uintptr) (free, total uint64, _ Status) {
	var f, t C.size_t
	st := C.pb_mem_info(C.uintptr_t(ctx), &f, &t)
	return uint64(f), uint64(t), Status(st)
}

// Current returns the context that is current on the calling thread, or 0 if there is none.
func Current() (uintptr, Status) {
	var ctx C.uintptr_t
	st := C.pb_current(&ctx)
	return uintptr(ctx), Status(st)
}
