//go:build cgo && linux

package driver

/*
#cgo noescape pb_copy_htod
#cgo nocallback pb_copy_htod
#cgo noescape pb_copy_dtoh
#cgo nocallback pb_copy_dtoh
#cgo nocallback pb_copy_dtod
#cgo nocallback pb_copy_htod_async
#cgo nocallback pb_copy_dtoh_async
#cgo nocallback pb_copy_dtod_async
#cgo nocallback pb_memset8
#cgo nocallback pb_memset32
#include "driver.h"

// The driver's synchronous copies may return before the last data has arrived ("API synchronization behavior" in NVIDIA's reference). So this
// function also waits for the legacy stream. When it returns, another stream or process can read the data.
static pb_status pb_copy_htod(uintptr_t ctx, uint64_t dst, const void *src, uint64_t n) {
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemcpyHtoD, dst, src, n);
	if (st == 0)
		st = PB_CALL(cuStreamSynchronize, NULL);
	return pb_leave(st);
}

PB_WRAP(pb_copy_dtoh, (uintptr_t ctx, void *dst, uint64_t src, uint64_t n), cuMemcpyDtoH, dst, src, n)

static pb_status pb_copy_dtod(uintptr_t ctx, uint64_t dst, uint64_t src, uint64_t n) {
	PB_ENTER(ctx);
	pb_status st = PB_CALL(cuMemcpyDtoD, dst, src, n);
	if (st == 0)
		st = PB_CALL(cuStreamSynchronize, NULL);
	return pb_leave(st);
}

PB_WRAP(pb_copy_htod_async, (uintptr_t ctx, uint64_t dst, uintptr_t src, uint64_t n, uintptr_t s), cuMemcpyHtoDAsync, dst, (const void *)src, n, (CUstream)s)
PB_WRAP(pb_copy_dtoh_async, (uintptr_t ctx, uintptr_t dst, uint64_t src, uint64_t n, uintptr_t s), cuMemcpyDtoHAsync, (void *)dst, src, n, (CUstream)s)
PB_WRAP(pb_copy_dtod_async, (uintptr_t ctx, uint64_t dst, uint64_t src, uint64_t n, uintptr_t s), cuMemcpyDtoDAsync, dst, src, n, (CUstream)s)
PB_WRAP(pb_memset8, (uintptr_t ctx, uint64_t dst, uint8_t v, uint64_t n, uintptr_t s), cuMemsetD8Async, dst, v, n, (CUstream)s)
PB_WRAP(pb_memset32, (uintptr_t ctx, uint64_t dst, uint32_t v, uint64_t n, uintptr_t s), cuMemsetD32Async, dst, v, n, (CUstream)s)
*/
import "C"

import "unsafe"

// CopyHtoD calls cuMemcpyHtoD and waits until the copy is done.
func CopyHtoD(ctx uintptr, dst uint64, src []byte) Status {
	return Status(C.pb_copy_htod(C.uintptr_t(ctx), C.uint64_t(dst), unsafe.Pointer(unsafe.SliceData(src)), C.uint64_t(len(src))))
}

// CopyDtoH calls cuMemcpyDtoH.
func CopyDtoH(ctx uintptr, dst []byte, src uint64) Status {
	return Status(C.pb_copy_dtoh(C.uintptr_t(ctx), unsafe.Pointer(unsafe.SliceData(dst)), C.uint64_t(src), C.uint64_t(len(dst))))
}

// CopyDtoD calls cuMemcpyDtoD and waits until the copy is done.
func CopyDtoD(ctx uintptr, dst, src, n uint64) Status {
	return Status(C.pb_copy_dtod(C.uintptr_t(ctx), C.uint64_t(dst), C.uint64_t(src), C.uint64_t(n)))
}

// CopyHtoDAsync calls cuMemcpyHtoDAsync. The memory at src must be outside the Go heap.
func CopyHtoDAsync(ctx, s uintptr, dst uint64, src uintptr, n uint64) Status {
	return Status(C.pb_copy_htod_async(C.uintptr_t(ctx), C.uint64_t(dst), C.uintptr_t(src), C.uint64_t(n), C.uintptr_t(s)))
}

// CopyDtoHAsync calls cuMemcpyDtoHAsync. The memory at dst must be outside the Go heap.
func CopyDtoHAsync(ctx, s uintptr, dst uintptr, src, n uint64) Status {
	return Status(C.pb_copy_dtoh_async(C.uintptr_t(ctx), C.uintptr_t(dst), C.uint64_t(src), C.uint64_t(n), C.uintptr_t(s)))
}

// CopyDtoDAsync calls cuMemcpyDtoDAsync.
func CopyDtoDAsync(ctx, s uintptr, dst, src, n uint64) Status {
	return Status(C.pb_copy_dtod_async(C.uintptr_t(ctx), C.uint64_t(dst), C.uint64_t(src), C.uint64_t(n), C.uintptr_t(s)))
}

// Memset8 calls cuMemsetD8Async for n bytes.
func Memset8(ctx, s uintptr, dst uint64, v uint8, n uint64) Status {
	return Status(C.pb_memset8(C.uintptr_t(ctx), C.uint64_t(dst), C.uint8_t(v), C.uint64_t(n), C.uintptr_t(s)))
}

// Memset32 calls cuMemsetD32Async for n words of four bytes.
func Memset32(ctx, s uintptr, dst uint64, v uint32, n uint64) Status {
	return Status(C.pb_memset32(C.uintptr_t(ctx), C.uint64_t(dst), C.uint32_t(v), C.uint64_t(n), C.uintptr_t(s)))
}
