//go:build cgo && linux

package driver

/*
#cgo noescape pb_pointer_info
#cgo nocallback pb_pointer_info
#include <string.h>
#include "driver.h"

struct pb_pointer {
	unsigned memory_type;
	int ordinal;
	int legacy_ipc;
	int mapped;
	uint64_t start;
	size_t size;
	int access;
	uintptr_t pool;
};

static pb_status pb_pointer_info(uintptr_t ctx, struct pb_pointer *p, uint64_t ptr) {
	// The driver writes a boolean as a byte or as an int, depending on the driver's version. All fields are 0 before the call, and the byte is the
	// lowest byte of the int. So the int has the right value in both cases.
	int attrs[] = {
		CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
		CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, CU_POINTER_ATTRIBUTE_MAPPED,
		CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, CU_POINTER_ATTRIBUTE_RANGE_SIZE,
		CU_POINTER_ATTRIBUTE_ACCESS_FLAGS, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE,
	};
	void *out[] = { &p->memory_type, &p->ordinal, &p->legacy_ipc, &p->mapped, &p->start, &p->size, &p->access, &p->pool };
	memset(p, 0, sizeof(*p));
	PB_ENTER(ctx);
	return pb_leave(PB_CALL(cuPointerGetAttributes, sizeof(attrs) / sizeof(attrs[0]), attrs, out, ptr));
}
*/
import "C"

// Pointer calls cuPointerGetAttributes.
func Pointer(ctx uintptr, ptr uint64) (PointerInfo, Status) {
	var p C.struct_pb_pointer
	st := C.pb_pointer_info(C.uintptr_t(ctx), &p, C.uint64_t(ptr))
	return PointerInfo{
		MemoryType:  uint32(p.memory_type),
		Ordinal:     int32(p.ordinal),
		LegacyIPC:   p.legacy_ipc != 0,
		Mapped:      p.mapped != 0,
		RangeStart:  uint64(p.start),
		RangeSize:   uint64(p.size),
		AccessFlags: uint32(p.access),
		MemPool:     uintptr(p.pool),
	}, Status(st)
}
