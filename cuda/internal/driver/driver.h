// This file declares the calls, types and values of the CUDA driver API that package cuda uses. So
// a build needs no header of the CUDA toolkit.
//
// The types have the layouts that they have in driver API 12.0. When pb_load looks up a function,
// it asks for the version of the function that uses these layouts (see PB_DRIVER_CALLS). So a newer
// driver also returns this version of the function.

#ifndef POOLBRIDGE_DRIVER_H
#define POOLBRIDGE_DRIVER_H

#include <stddef.h>
#include <stdint.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef unsigned long long CUmemGenericAllocationHandle;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

typedef struct { unsigned char bytes[16]; } CUuuid;
typedef struct { unsigned char reserved[64]; } CUipcEventHandle;
typedef struct { unsigned char reserved[64]; } CUipcMemHandle;
typedef struct { unsigned char reserved[64]; } CUmemPoolPtrExportData;

typedef struct {
	int type; // CU_MEM_LOCATION_TYPE_*
	int id;
} CUmemLocation;

typedef struct {
	CUmemLocation location;
	int flags; // CU_MEM_ACCESS_FLAGS_PROT_*
} CUmemAccessDesc;

typedef struct {
	int allocType;
	int handleTypes;
	CUmemLocation location;
	void *win32SecurityAttributes;
	size_t maxSize;
	unsigned short usage;
	unsigned char reserved[54];
} CUmemPoolProps;

typedef struct {
	int type;
	int requestedHandleTypes;
	CUmemLocation location;
	void *win32HandleMetaData;
	struct {
		unsigned char compressionType;
		unsigned char gpuDirectRDMACapable;
		unsigned short usage;
		unsigned char reserved[4];
	} allocFlags;
} CUmemAllocationProp;

_Static_assert(sizeof(CUmemPoolProps) == 88, "CUmemPoolProps is 88 bytes in the driver ABI");
_Static_assert(sizeof(CUmemAllocationProp) == 32, "CUmemAllocationProp is 32 bytes in the driver ABI");
_Static_assert(sizeof(CUmemAccessDesc) == 12, "CUmemAccessDesc is 12 bytes in the driver ABI");

enum {
	CUDA_SUCCESS = 0,
	CUDA_ERROR_ALREADY_MAPPED = 208,
	CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704,

	CU_STREAM_NON_BLOCKING = 1,
	CU_STREAM_WAIT_VALUE_GEQ = 0,
	CU_STREAM_WRITE_VALUE_DEFAULT = 0,

	CU_EVENT_DISABLE_TIMING = 2,
	CU_EVENT_INTERPROCESS = 4,

	CU_MEM_ALLOCATION_TYPE_PINNED = 1,
	CU_MEM_HANDLE_TYPE_NONE = 0,
	CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1,
	CU_MEM_LOCATION_TYPE_DEVICE = 1,
	CU_MEM_LOCATION_TYPE_HOST_NUMA = 3,
	CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0,
	CU_MEMPOOL_ATTR_RELEASE_THRESHOLD = 4,

	CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS = 1,

	CU_MEMHOSTALLOC_PORTABLE = 1,
	CU_MEMHOSTALLOC_DEVICEMAP = 2,
	CU_MEMHOSTREGISTER_DEVICEMAP = 2,

	CU_JIT_ERROR_LOG_BUFFER = 5,
	CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES = 6,

	CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
	CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
	CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
	CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
	CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
	CU_POINTER_ATTRIBUTE_MAPPED = 13,
	CU_POINTER_ATTRIBUTE_ACCESS_FLAGS = 16,
	CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE = 17,
};

// PB_DRIVER_CALLS lists every driver call that this project makes:
//   X(name, suffix, version, parameters)
// pb_load calls cuGetProcAddress with the name and the version. If cuGetProcAddress finds no
// function, pb_load calls dlsym. The symbol for dlsym is the name followed by the suffix.
#define PB_DRIVER_CALLS(X) \
	X(cuInit, , 2000, (unsigned)) \
	X(cuDriverGetVersion, , 2020, (int *)) \
	X(cuDeviceGetCount, , 2000, (int *)) \
	X(cuDeviceGet, , 2000, (CUdevice *, int)) \
	X(cuDeviceGetName, , 2000, (char *, int, CUdevice)) \
	X(cuDeviceGetUuid, _v2, 11040, (CUuuid *, CUdevice)) \
	X(cuDeviceTotalMem, _v2, 3020, (size_t *, CUdevice)) \
	X(cuDeviceGetAttribute, , 2000, (int *, int, CUdevice)) \
	X(cuDeviceGetPCIBusId, , 4010, (char *, int, CUdevice)) \
	X(cuDeviceCanAccessPeer, , 4000, (int *, CUdevice, CUdevice)) \
	X(cuDevicePrimaryCtxRetain, , 7000, (CUcontext *, CUdevice)) \
	X(cuDevicePrimaryCtxRelease, _v2, 11000, (CUdevice)) \
	X(cuCtxCreate, _v2, 3020, (CUcontext *, unsigned, CUdevice)) \
	X(cuCtxDestroy, _v2, 4000, (CUcontext)) \
	X(cuCtxPushCurrent, _v2, 4000, (CUcontext)) \
	X(cuCtxPopCurrent, _v2, 4000, (CUcontext *)) \
	X(cuCtxGetCurrent, , 4000, (CUcontext *)) \
	X(cuCtxSynchronize, , 2000, (void)) \
	X(cuMemGetInfo, _v2, 3020, (size_t *, size_t *)) \
	X(cuStreamCreate, , 2000, (CUstream *, unsigned)) \
	X(cuStreamDestroy, _v2, 4000, (CUstream)) \
	X(cuStreamSynchronize, , 2000, (CUstream)) \
	X(cuStreamQuery, , 2000, (CUstream)) \
	X(cuStreamWaitEvent, , 3020, (CUstream, CUevent, unsigned)) \
	X(cuStreamWriteValue64, _v2, 11070, (CUstream, CUdeviceptr, uint64_t, unsigned)) \
	X(cuStreamWaitValue64, _v2, 11070, (CUstream, CUdeviceptr, uint64_t, unsigned)) \
	X(cuEventCreate, , 2000, (CUevent *, unsigned)) \
	X(cuEventDestroy, _v2, 4000, (CUevent)) \
	X(cuEventRecord, , 2000, (CUevent, CUstream)) \
	X(cuEventQuery, , 2000, (CUevent)) \
	X(cuEventSynchronize, , 2000, (CUevent)) \
	X(cuEventElapsedTime, , 2000, (float *, CUevent, CUevent)) \
	X(cuIpcGetEventHandle, , 4010, (CUipcEventHandle *, CUevent)) \
	X(cuIpcOpenEventHandle, , 4010, (CUevent *, CUipcEventHandle)) \
	X(cuMemPoolCreate, , 11020, (CUmemoryPool *, const CUmemPoolProps *)) \
	X(cuMemPoolDestroy, , 11020, (CUmemoryPool)) \
	X(cuMemPoolTrimTo, , 11020, (CUmemoryPool, size_t)) \
	X(cuMemPoolSetAttribute, , 11020, (CUmemoryPool, int, void *)) \
	X(cuMemPoolGetAttribute, , 11020, (CUmemoryPool, int, void *)) \
	X(cuMemPoolSetAccess, , 11020, (CUmemoryPool, const CUmemAccessDesc *, size_t)) \
	X(cuMemPoolGetAccess, , 11020, (int *, CUmemoryPool, CUmemLocation *)) \
	X(cuMemPoolExportToShareableHandle, , 11020, (void *, CUmemoryPool, int, unsigned long long)) \
	X(cuMemPoolImportFromShareableHandle, , 11020, (CUmemoryPool *, void *, int, unsigned long long)) \
	X(cuMemPoolExportPointer, , 11020, (CUmemPoolPtrExportData *, CUdeviceptr)) \
	X(cuMemPoolImportPointer, , 11020, (CUdeviceptr *, CUmemoryPool, CUmemPoolPtrExportData *)) \
	X(cuMemAllocFromPoolAsync, , 11020, (CUdeviceptr *, size_t, CUmemoryPool, CUstream)) \
	X(cuMemFreeAsync, , 11020, (CUdeviceptr, CUstream)) \
	X(cuMemAlloc, _v2, 3020, (CUdeviceptr *, size_t)) \
	X(cuMemFree, _v2, 3020, (CUdeviceptr)) \
	X(cuMemGetAddressRange, _v2, 3020, (CUdeviceptr *, size_t *, CUdeviceptr)) \
	X(cuIpcGetMemHandle, , 4010, (CUipcMemHandle *, CUdeviceptr)) \
	X(cuIpcOpenMemHandle, _v2, 11000, (CUdeviceptr *, CUipcMemHandle, unsigned)) \
	X(cuIpcCloseMemHandle, , 4010, (CUdeviceptr)) \
	X(cuMemcpyHtoD, _v2, 3020, (CUdeviceptr, const void *, size_t)) \
	X(cuMemcpyDtoH, _v2, 3020, (void *, CUdeviceptr, size_t)) \
	X(cuMemcpyDtoD, _v2, 3020, (CUdeviceptr, CUdeviceptr, size_t)) \
	X(cuMemcpyHtoDAsync, _v2, 3020, (CUdeviceptr, const void *, size_t, CUstream)) \
	X(cuMemcpyDtoHAsync, _v2, 3020, (void *, CUdeviceptr, size_t, CUstream)) \
	X(cuMemcpyDtoDAsync, _v2, 3020, (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	X(cuMemsetD8Async, , 3020, (CUdeviceptr, unsigned char, size_t, CUstream)) \
	X(cuMemsetD32Async, , 3020, (CUdeviceptr, unsigned, size_t, CUstream)) \
	X(cuMemHostAlloc, , 2020, (void **, size_t, unsigned)) \
	X(cuMemFreeHost, , 2000, (void *)) \
	X(cuMemHostGetDevicePointer, _v2, 3020, (CUdeviceptr *, void *, unsigned)) \
	X(cuMemHostRegister, _v2, 6050, (void *, size_t, unsigned)) \
	X(cuMemHostUnregister, , 4000, (void *)) \
	X(cuMemGetAllocationGranularity, , 10020, (size_t *, const CUmemAllocationProp *, int)) \
	X(cuMemCreate, , 10020, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long)) \
	X(cuMemRelease, , 10020, (CUmemGenericAllocationHandle)) \
	X(cuMemAddressReserve, , 10020, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long)) \
	X(cuMemAddressFree, , 10020, (CUdeviceptr, size_t)) \
	X(cuMemMap, , 10020, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long)) \
	X(cuMemUnmap, , 10020, (CUdeviceptr, size_t)) \
	X(cuMemSetAccess, , 10020, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t)) \
	X(cuMemExportToShareableHandle, , 10020, (void *, CUmemGenericAllocationHandle, int, unsigned long long)) \
	X(cuMemImportFromShareableHandle, , 10020, (CUmemGenericAllocationHandle *, void *, int)) \
	X(cuModuleLoadDataEx, , 2010, (CUmodule *, const void *, unsigned, int *, void **)) \
	X(cuModuleUnload, , 2000, (CUmodule)) \
	X(cuModuleGetFunction, , 2000, (CUfunction *, CUmodule, const char *)) \
	X(cuLaunchKernel, , 4000, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
	X(cuPointerGetAttributes, , 7000, (unsigned, int *, void **, CUdeviceptr))

// Each driver call has a number, which is at least 1, and an entry in the table of function
// pointers. An entry is NULL if the driver does not have the call.
enum {
	PB_NO_CALL,
#define X(name, suffix, version, params) PB_##name,
	PB_DRIVER_CALLS(X)
#undef X
};

struct pb_table {
#define X(name, suffix, version, params) CUresult(*name) params;
	PB_DRIVER_CALLS(X)
#undef X
};

extern struct pb_table pb_driver;

// pb_load opens libcuda.so.1, fills the table of function pointers and returns 0. If pb_load fails,
// it returns -1 and writes the reason to the buffer `why`. pb_load is not safe for concurrent use.
int pb_load(char *why, size_t size);

// pb_call_name returns the name of the call with a number, or "" if no call has that number.
const char *pb_call_name(int call);

// A pb_status is 0, or the number of the driver call that failed (high 32 bits) and its result (low
// 32 bits). So one C function can make several driver calls and report which of them failed.
typedef int64_t pb_status;

// PB_SYMBOL_NOT_FOUND is a result of this package, not of the driver: see ErrSymbolNotFound.
#define PB_SYMBOL_NOT_FOUND (-3)

static inline pb_status pb_result(int call, CUresult r) {
	return r == CUDA_SUCCESS ? 0 : (pb_status)(((uint64_t)call << 32) | (uint32_t)r);
}

#define PB_CALL(name, ...) \
	(pb_driver.name != NULL ? pb_result(PB_##name, pb_driver.name(__VA_ARGS__)) \
	                        : pb_result(PB_##name, PB_SYMBOL_NOT_FOUND))

// Each OS thread has its own current context, and goroutines move between threads. So every
// function that needs a context begins with PB_ENTER and ends with pb_leave. With both, the thread
// has the same current context before and after the function.
#define PB_ENTER(ctx) \
	CUcontext entered = (CUcontext)(ctx); \
	do { \
		pb_status pushed = PB_CALL(cuCtxPushCurrent, entered); \
		if (pushed != 0) \
			return pushed; \
	} while (0)
#define pb_leave(st) pb_left(entered, st)

// pb_left returns st even if it cannot pop the context, because the function that calls pb_left has
// already done its work. If pb_left returned another error, the result of this work would be lost.
static inline pb_status pb_left(CUcontext entered, pb_status st) {
	CUcontext now = NULL;
	if (PB_CALL(cuCtxPopCurrent, &now) != 0 && PB_CALL(cuCtxGetCurrent, &now) == 0 && now == entered)
		(void)PB_CALL(cuCtxPopCurrent, &now);
	return st;
}

// PB_WRAP defines a function that makes one call of the driver in the context `ctx`, which is one of the parameters.
#define PB_WRAP(wrapper, parameters, name, ...) \
	static pb_status wrapper parameters { \
		PB_ENTER(ctx); \
		return pb_leave(PB_CALL(name, __VA_ARGS__)); \
	}

#endif
