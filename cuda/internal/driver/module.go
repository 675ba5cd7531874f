//go:build cgo && linux

package driver

/*
#cgo noescape pb_module_load
#cgo nocallback pb_module_load
#cgo nocallback pb_module_unload
#cgo noescape pb_module_function
#cgo nocallback pb_module_function
#cgo noescape pb_launch
#cgo nocallback pb_launch
#include "driver.h"

enum { PB_MAX_ARGS = 32 };

static pb_status pb_module_load(uintptr_t ctx, uintptr_t *m, const void *image, char *log, size_t size) {
	int options[] = { CU_JIT_ERROR_LOG_BUFFER, CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES };
	void *values[] = { log, (void *)size };
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuModuleLoadDataEx, (CUmodule *)m, image, 2, options, values));
}

PB_WRAP(pb_module_unload, (uintptr_t ctx, uintptr_t m), cuModuleUnload, (CUmodule)m)
PB_WRAP(pb_module_function, (uintptr_t ctx, uintptr_t *f, uintptr_t m, const char *name), cuModuleGetFunction, (CUfunction *)f, (CUmodule)m, name)

// Each argument has a slot of eight bytes. The driver reads as many bytes of the slot as the kernel declares. CUDA runs only on little-endian
// machines, so a narrower value is at the beginning of its slot.
static pb_status pb_launch(uintptr_t ctx, uintptr_t s, uintptr_t f, const unsigned *dims, unsigned shared, uint64_t *args, int n) {
	void *params[PB_MAX_ARGS];
	for (int i = 0; i < n && i < PB_MAX_ARGS; i++)
		params[i] = &args[i];
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuLaunchKernel, (CUfunction)f, dims[0], dims[1], dims[2], dims[3], dims[4], dims[5], shared, (CUstream)s, params, NULL));
}
*/
import "C"

import "unsafe"

// ModuleLoad calls cuModuleLoadDataEx. The image must end with a zero byte. If the call fails, the result `log` is the error text of the
// driver's compiler.
func ModuleLoad(ctx uintptr, image []byte) (m uintptr, log string, _ Status) {
	var mod C.uintptr_t
	var buf [4096]byte
	st := C.pb_module_load(C.uintptr_t(ctx), &mod, unsafe.Pointer(unsafe.SliceData(image)),
		(*C.char)(unsafe.Pointer(&buf[0])), C.size_t(len(buf)))
	if st != 0 {
		log = cString(buf[:])
	}
	return uintptr(mod), log, Status(st)
}

// ModuleUnload calls cuModuleUnload.
func ModuleUnload(ctx, m uintptr) Status {
	return Status(C.pb_module_unload(C.uintptr_t(ctx), C.uintptr_t(m)))
}

// ModuleFunction calls cuModuleGetFunction.
func ModuleFunction(ctx, m uintptr, name string) (uintptr, Status) {
	var f C.uintptr_t
	z := append([]byte(name), 0)
	st := C.pb_module_function(C.uintptr_t(ctx), &f, C.uintptr_t(m), (*C.char)(unsafe.Pointer(unsafe.SliceData(z))))
	return uintptr(f), Status(st)
}

// Launch calls cuLaunchKernel. dims has the three dimensions of the grid, and then the three dimensions of the block. The first n elements of
// args are the kernel's arguments.
func Launch(ctx, s, f uintptr, dims *[6]uint32, shared uint32, args *[MaxLaunchArgs]uint64, n int) Status {
	return Status(C.pb_launch(C.uintptr_t(ctx), C.uintptr_t(s), C.uintptr_t(f),
		(*C.uint)(unsafe.Pointer(dims)), C.uint(shared), (*C.uint64_t)(unsafe.Pointer(args)), C.int(n)))
}

// This line compiles only if the Go constant MaxLaunchArgs and the C constant PB_MAX_ARGS are equal.
var _ [MaxLaunchArgs]struct{} = [C.PB_MAX_ARGS]struct{}{}
