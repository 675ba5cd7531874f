//go:build cgo && linux

package driver

/*
#cgo noescape pb_device_count
#cgo nocallback pb_device_count
#cgo noescape pb_device_get
#cgo nocallback pb_device_get
#cgo noescape pb_device_name
#cgo nocallback pb_device_name
#cgo noescape pb_device_uuid
#cgo nocallback pb_device_uuid
#cgo noescape pb_device_total_mem
#cgo nocallback pb_device_total_mem
#cgo noescape pb_device_attribute
#cgo nocallback pb_device_attribute
#cgo noescape pb_device_pci
#cgo nocallback pb_device_pci
#cgo noescape pb_device_peer
#cgo nocallback pb_device_peer
#include "driver.h"

static pb_status pb_device_count(int *n) { return PB_CALL(cuDeviceGetCount, n); }
static pb_status pb_device_get(int *dev, int ordinal) { return PB_CALL(cuDeviceGet, dev, ordinal); }
static pb_status pb_device_name(char *name, int size, int dev) { return PB_CALL(cuDeviceGetName, name, size, dev); }
static pb_status pb_device_uuid(void *uuid, int dev) { return PB_CALL(cuDeviceGetUuid, (CUuuid *)uuid, dev); }
static pb_status pb_device_total_mem(size_t *bytes, int dev) { return PB_CALL(cuDeviceTotalMem, bytes, dev); }
static pb_status pb_device_attribute(int *v, int attr, int dev) { return PB_CALL(cuDeviceGetAttribute, v, attr, dev); }
static pb_status pb_device_pci(char *id, int size, int dev) { return PB_CALL(cuDeviceGetPCIBusId, id, size, dev); }
static pb_status pb_device_peer(int *can, int dev, int peer) { return PB_CALL(cuDeviceCanAccessPeer, can, dev, peer); }
*/
import "C"

import "unsafe"

// DeviceCount calls cuDeviceGetCount.
func DeviceCount() (int, Status) {
	var n C.int
	st := C.pb_device_count(&n)
	return int(n), Status(st)
}

// DeviceGet calls cuDeviceGet.
func DeviceGet(ordinal int) (int32, Status) {
	var dev C.int
	st := C.pb_device_get(&dev, C.int(ordinal))
	return int32(dev), Status(st)
}

// DeviceName calls cuDeviceGetName.
func DeviceName(dev int32) (string, Status) {
	var buf [256]byte
	st := C.pb_device_name((*C.char)(unsafe.Pointer(&buf[0])), C.int(len(buf)), C.int(dev))
	return cString(buf[:]), Status(st)
}

// DeviceUUID calls cuDeviceGetUuid.
func DeviceUUID(dev int32) (uuid [16]byte, _ Status) {
	st := C.pb_device_uuid(unsafe.Pointer(&uuid), C.int(dev))
	return uuid, Status(st)
}

// DeviceTotalMem calls cuDeviceTotalMem.
func DeviceTotalMem(dev int32) (uint64, Status) {
	var n C.size_t
	st := C.pb_device_total_mem(&n, C.int(dev))
	return uint64(n), Status(st)
}

// DeviceAttribute calls cuDeviceGetAttribute.
func DeviceAttribute(dev int32, attr int) (int, Status) {
	var v C.int
	st := C.pb_device_attribute(&v, C.int(attr), C.int(dev))
	return int(v), Status(st)
}

// DevicePCIBusID calls cuDeviceGetPCIBusId.
func DevicePCIBusID(dev int32) (string, Status) {
	var buf [64]byte
	st := C.pb_device_pci((*C.char)(unsafe.Pointer(&buf[0])), C.int(len(buf)), C.int(dev))
	return cString(buf[:]), Status(st)
}

// DeviceCanAccessPeer calls cuDeviceCanAccessPeer.
func DeviceCanAccessPeer(dev, peer int32) (bool, Status) {
	var can C.int
	st := C.pb_device_peer(&can, C.int(dev), C.int(peer))
	return can != 0, Status(st)
}
