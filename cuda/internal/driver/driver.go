//go:build cgo && linux

package driver

/*
#cgo CFLAGS: -O2 -Wall -Wextra
#cgo LDFLAGS: -ldl
#cgo noescape pb_load
#cgo nocallback pb_load
#cgo nocallback pb_call_name
#cgo nocallback pb_init
#cgo noescape pb_version
#cgo nocallback pb_version
#include "driver.h"

static pb_status pb_init(void) { return PB_CALL(cuInit, 0); }
static pb_status pb_version(int *version) { return PB_CALL(cuDriverGetVersion, version); }
*/
import "C"

import "unsafe"

// Load opens libcuda.so.1 and looks up its functions. If Load fails, the result `why` is a text that says why. Only one goroutine at a time may
// call Load, and no goroutine may call it after it has succeeded.
func Load() (why string, ok bool) {
	var buf [512]byte
	if C.pb_load((*C.char)(unsafe.Pointer(&buf[0])), C.size_t(len(buf))) != 0 {
		return cString(buf[:]), false
	}
	return "", true
}

// Init calls cuInit.
func Init() Status { return Status(C.pb_init()) }

// Version returns the result of cuDriverGetVersion, for example 13000 for CUDA 13.0.
func Version() (int, Status) {
	var v C.int
	st := C.pb_version(&v)
	return int(v), Status(st)
}

func callName(call int) string { return C.GoString(C.pb_call_name(C.int(call))) }
