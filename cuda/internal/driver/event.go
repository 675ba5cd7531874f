//go:build cgo && linux

package driver

/*
#cgo noescape pb_event_create
#cgo nocallback pb_event_create
#cgo nocallback pb_event_destroy
#cgo nocallback pb_event_record
#cgo nocallback pb_event_query
#cgo nocallback pb_event_synchronize
#cgo noescape pb_event_elapsed
#cgo nocallback pb_event_elapsed
#cgo noescape pb_event_export
#cgo nocallback pb_event_export
#cgo noescape pb_event_open
#cgo nocallback pb_event_open
#include <string.h>
#include "driver.h"

static pb_status pb_event_create(uintptr_t ctx, uintptr_t *e, int timing, int interprocess) {
	unsigned flags = (timing ? 0 : CU_EVENT_DISABLE_TIMING) | (interprocess ? CU_EVENT_INTERPROCESS : 0);
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuEventCreate, (CUevent *)e, flags));
}

PB_WRAP(pb_event_destroy, (uintptr_t ctx, uintptr_t e), cuEventDestroy, (CUevent)e)
PB_WRAP(pb_event_record, (uintptr_t ctx, uintptr_t e, uintptr_t s), cuEventRecord, (CUevent)e, (CUstream)s)
PB_WRAP(pb_event_query, (uintptr_t ctx, uintptr_t e), cuEventQuery, (CUevent)e)
PB_WRAP(pb_event_synchronize, (uintptr_t ctx, uintptr_t e), cuEventSynchronize, (CUevent)e)
PB_WRAP(pb_event_elapsed, (uintptr_t ctx, float *ms, uintptr_t start, uintptr_t end), cuEventElapsedTime, ms, (CUevent)start, (CUevent)end)
PB_WRAP(pb_event_export, (uintptr_t ctx, void *handle, uintptr_t e), cuIpcGetEventHandle, (CUipcEventHandle *)handle, (CUevent)e)

static pb_status pb_event_open(uintptr_t ctx, uintptr_t *e, const void *handle) {
	CUipcEventHandle h;
	memcpy(&h, handle, sizeof(h));
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuIpcOpenEventHandle, (CUevent *)e, h));
}
*/
import "C"

import "unsafe"

// EventCreate calls cuEventCreate.
func EventCreate(ctx uintptr, timing, interprocess bool) (uintptr, Status) {
	var e C.uintptr_t
	st := C.pb_event_create(C.uintptr_t(ctx), &e, flag(timing), flag(interprocess))
	return uintptr(e), Status(st)
}

// EventDestroy calls cuEventDestroy.
func EventDestroy(ctx, e uintptr) Status {
	return Status(C.pb_event_destroy(C.uintptr_t(ctx), C.uintptr_t(e)))
}

// EventRecord calls cuEventRecord.
func EventRecord(ctx, e, s uintptr) Status {
	return Status(C.pb_event_record(C.uintptr_t(ctx), C.uintptr_t(e), C.uintptr_t(s)))
}

// EventQuery calls cuEventQuery.
func EventQuery(ctx, e uintptr) Status {
	return Status(C.pb_event_query(C.uintptr_t(ctx), C.uintptr_t(e)))
}

// EventSynchronize calls cuEventSynchronize.
func EventSynchronize(ctx, e uintptr) Status {
	return Status(C.pb_event_synchronize(C.uintptr_t(ctx), C.uintptr_t(e)))
}

// EventElapsed calls cuEventElapsedTime. The time is in milliseconds.
func EventElapsed(ctx, start, end uintptr) (float32, Status) {
	var ms C.float
	st := C.pb_event_elapsed(C.uintptr_t(ctx), &ms, C.uintptr_t(start), C.uintptr_t(end))
	return float32(ms), Status(st)
}

// EventExport calls cuIpcGetEventHandle.
func EventExport(ctx, e uintptr) (handle [64]byte, _ Status) {
	st := C.pb_event_export(C.uintptr_t(ctx), unsafe.Pointer(&handle), C.uintptr_t(e))
	return handle, Status(st)
}

// EventOpen calls cuIpcOpenEventHandle.
func EventOpen(ctx uintptr, handle *[64]byte) (uintptr, Status) {
	var e C.uintptr_t
	st := C.pb_event_open(C.uintptr_t(ctx), &e, unsafe.Pointer(handle))
	return uintptr(e), Status(st)
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
