//go:build cgo && linux

package driver

/*
#cgo noescape pb_stream_create
#cgo nocallback pb_stream_create
#cgo nocallback pb_stream_destroy
#cgo nocallback pb_stream_synchronize
#cgo nocallback pb_stream_query
#cgo nocallback pb_stream_wait_event
#cgo nocallback pb_stream_write64
#cgo nocallback pb_stream_wait64
#include "driver.h"

PB_WRAP(pb_stream_create, (uintptr_t ctx, uintptr_t *s), cuStreamCreate, (CUstream *)s, CU_STREAM_NON_BLOCKING)
PB_WRAP(pb_stream_destroy, (uintptr_t ctx, uintptr_t s), cuStreamDestroy, (CUstream)s)
PB_WRAP(pb_stream_synchronize, (uintptr_t ctx, uintptr_t s), cuStreamSynchronize, (CUstream)s)
PB_WRAP(pb_stream_query, (uintptr_t ctx, uintptr_t s), cuStreamQuery, (CUstream)s)
PB_WRAP(pb_stream_wait_event, (uintptr_t ctx, uintptr_t s, uintptr_t e), cuStreamWaitEvent, (CUstream)s, (CUevent)e, 0)
PB_WRAP(pb_stream_write64, (uintptr_t ctx, uintptr_t s, uint64_t ptr, uint64_t v), cuStreamWriteValue64, (CUstream)s, ptr, v, CU_STREAM_WRITE_VALUE_DEFAULT)
PB_WRAP(pb_stream_wait64, (uintptr_t ctx, uintptr_t s, uint64_t ptr, uint64_t v), cuStreamWaitValue64, (CUstream)s, ptr, v, CU_STREAM_WAIT_VALUE_GEQ)
*/
import "C"

// StreamCreate calls cuStreamCreate with CU_STREAM_NON_BLOCKING.
func StreamCreate(ctx uintptr) (uintptr, Status) {
	var s C.uintptr_t
	st := C.pb_stream_create(C.uintptr_t(ctx), &s)
	return uintptr(s), Status(st)
}

// StreamDestroy calls cuStreamDestroy.
func StreamDestroy(ctx, s uintptr) Status {
	return Status(C.pb_stream_destroy(C.uintptr_t(ctx), C.uintptr_t(s)))
}

// StreamSynchronize calls cuStreamSynchronize.
func StreamSynchronize(ctx, s uintptr) Status {
	return Status(C.pb_stream_synchronize(C.uintptr_t(ctx), C.uintptr_t(s)))
}

// StreamQuery calls cuStreamQuery.
func StreamQuery(ctx, s uintptr) Status {
	return Status(C.pb_stream_query(C.uintptr_t(ctx), C.uintptr_t(s)))
}

// StreamWaitEvent calls cuStreamWaitEvent.
func StreamWaitEvent(ctx, s, e uintptr) Status {
	return Status(C.pb_stream_wait_event(C.uintptr_t(ctx), C.uintptr_t(s), C.uintptr_t(e)))
}

// StreamWriteValue64 calls cuStreamWriteValue64. The GPU makes a memory barrier before it writes the value.
func StreamWriteValue64(ctx, s uintptr, ptr, v uint64) Status {
	return Status(C.pb_stream_write64(C.uintptr_t(ctx), C.uintptr_t(s), C.uint64_t(ptr), C.uint64_t(v)))
}

// StreamWaitValue64 calls cuStreamWaitValue64 with CU_STREAM_WAIT_VALUE_GEQ.
func StreamWaitValue64(ctx, s uintptr, ptr, v uint64) Status {
	return Status(C.pb_stream_wait64(C.uintptr_t(ctx), C.uintptr_t(s), C.uint64_t(ptr), C.uint64_t(v)))
}
