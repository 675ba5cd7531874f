package cuda

import (
	"strconv"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// Result is a CUresult. It is also an error, and programs compare errors with the Err constants by [errors.Is]. A negative Result is an error
// that this package itself finds, not the driver. The names and the descriptions come from a table in this package, so they need no driver.
type Result int32

// Success means no error. No function of this package returns it as an error.
const Success Result = 0

// This package itself finds these errors, not the driver.
const (
	ErrNoDriver       Result = driver.ResultNoDriver       // libcuda.so.1 cannot be opened
	ErrDriverTooOld   Result = driver.ResultDriverTooOld   // the driver is older than MinDriverVersion
	ErrSymbolNotFound Result = driver.ResultSymbolNotFound // the driver lacks a call
	ErrClosed         Result = driver.ResultClosed         // the object was closed
)

// The driver returns these errors. They have the same numbers and the same order as in cuda.h.
const (
	ErrInvalidValue                 Result = 1   // invalid argument
	ErrOutOfMemory                  Result = 2   // out of memory
	ErrNotInitialized               Result = 3   // driver is not initialised
	ErrDeinitialized                Result = 4   // driver is shutting down
	ErrProfilerDisabled             Result = 5   // profiler is disabled
	ErrProfilerNotInitialized       Result = 6   // profiler is not initialised
	ErrProfilerAlreadyStarted       Result = 7   // profiler was started before
	ErrProfilerAlreadyStopped       Result = 8   // profiler was stopped before
	ErrStubLibrary                  Result = 34  // the library is a stub, not a driver
	ErrCallRequiresNewerDriver      Result = 36  // call requires a newer driver
	ErrDeviceUnavailable            Result = 46  // device is busy or unavailable
	ErrMulticastResourceFull        Result = 47  // no multicast resources left
	ErrNoDevice                     Result = 100 // no CUDA device
	ErrInvalidDevice                Result = 101 // invalid device
	ErrDeviceNotLicensed            Result = 102 // device has no licence
	ErrInvalidImage                 Result = 200 // invalid kernel image
	ErrInvalidContext               Result = 201 // invalid context
	ErrContextAlreadyCurrent        Result = 202 // context is current already
	ErrMapFailed                    Result = 205 // mapping failed
	ErrUnmapFailed                  Result = 206 // unmapping failed
	ErrArrayIsMapped                Result = 207 // array is mapped
	ErrAlreadyMapped                Result = 208 // mapped already
	ErrNoBinaryForGPU               Result = 209 // no kernel image for this GPU
	ErrAlreadyAcquired              Result = 210 // acquired already
	ErrNotMapped                    Result = 211 // not mapped
	ErrNotMappedAsArray             Result = 212 // not mapped as an array
	ErrNotMappedAsPointer           Result = 213 // not mapped as a pointer
	ErrECCUncorrectable             Result = 214 // uncorrectable memory error
	ErrUnsupportedLimit             Result = 215 // limit is not supported
	ErrContextAlreadyInUse          Result = 216 // context is in use by another thread
	ErrPeerAccessUnsupported        Result = 217 // peer access is not supported
	ErrInvalidPTX                   Result = 218 // PTX does not compile
	ErrInvalidGraphicsContext       Result = 219 // invalid graphics context
	ErrNVLinkUncorrectable          Result = 220 // uncorrectable NVLink error
	ErrJITCompilerNotFound          Result = 221 // PTX compiler is missing
	ErrUnsupportedPTXVersion        Result = 222 // PTX is newer than the driver
	ErrJITCompilationDisabled       Result = 223 // PTX compilation is disabled
	ErrUnsupportedExecAffinity      Result = 224 // execution affinity is not supported
	ErrUnsupportedDevsideSync       Result = 225 // synchronising on the device is not supported
	ErrContained                    Result = 226 // contained error of the GPU
	ErrInsufficientLoaderVersion    Result = 227 // loader is older than the image
	ErrInvalidSource                Result = 300 // invalid kernel source
	ErrFileNotFound                 Result = 301 // file not found
	ErrSharedObjectSymbolNotFound   Result = 302 // symbol of a shared object not found
	ErrSharedObjectInitFailed       Result = 303 // shared object could not be initialised
	ErrOperatingSystem              Result = 304 // call to the operating system failed
	ErrInvalidHandle                Result = 400 // invalid handle
	ErrIllegalState                 Result = 401 // object is in the wrong state
	ErrLossyQuery                   Result = 402 // answer would lose information
	ErrNotFound                     Result = 500 // named symbol not found
	ErrNotReady                     Result = 600 // work is not finished
	ErrIllegalAddress               Result = 700 // illegal address was accessed
	ErrLaunchOutOfResources         Result = 701 // too many resources requested for a launch
	ErrLaunchTimeout                Result = 702 // kernel ran too long
	ErrLaunchIncompatibleTexturing  Result = 703 // launch with incompatible texturing
	ErrPeerAccessAlreadyEnabled     Result = 704 // peer access is enabled already
	ErrPeerAccessNotEnabled         Result = 705 // peer access is not enabled
	ErrPrimaryContextActive         Result = 708 // primary context is active
	ErrContextIsDestroyed           Result = 709 // context is destroyed
	ErrAssert                       Result = 710 // assertion in a kernel
	ErrTooManyPeers                 Result = 711 // too many peers
	ErrHostMemoryAlreadyRegistered  Result = 712 // host memory is registered already
	ErrHostMemoryNotRegistered      Result = 713 // host memory is not registered
	ErrHardwareStackError           Result = 714 // stack error of the hardware
	ErrIllegalInstruction           Result = 715 // illegal instruction
	ErrMisalignedAddress            Result = 716 // misaligned address
	ErrInvalidAddressSpace          Result = 717 // operation on the wrong address space
	ErrInvalidPC                    Result = 718 // invalid program counter
	ErrLaunchFailed                 Result = 719 // kernel failed
	ErrCooperativeLaunchTooLarge    Result = 720 // cooperative launch is too large
	ErrTensorMemoryLeak             Result = 721 // kernel left tensor memory allocated
	ErrNotPermitted                 Result = 800 // operation not permitted
	ErrNotSupported                 Result = 801 // operation not supported
	ErrSystemNotReady               Result = 802 // system is not ready
	ErrSystemDriverMismatch         Result = 803 // driver library and kernel module differ
	ErrCompatNotSupportedOnDevice   Result = 804 // forward compatibility is not supported on this device
	ErrMPSConnectionFailed          Result = 805 // no connection to the MPS control daemon
	ErrMPSRPCFailure                Result = 806 // MPS call failed
	ErrMPSServerNotReady            Result = 807 // MPS server is not ready
	ErrMPSMaxClientsReached         Result = 808 // too many MPS clients
	ErrMPSMaxConnectionsReached     Result = 809 // too many MPS connections
	ErrMPSClientTerminated          Result = 810 // MPS client was terminated
	ErrCDPNotSupported              Result = 811 // dynamic parallelism is not supported
	ErrCDPVersionMismatch           Result = 812 // versions of dynamic parallelism differ
	ErrStreamCaptureUnsupported     Result = 900 // operation cannot be captured
	ErrStreamCaptureInvalidated     Result = 901 // capture was invalidated
	ErrStreamCaptureMerge           Result = 902 // captures cannot be merged
	ErrStreamCaptureUnmatched       Result = 903 // capture was not begun on this stream
	ErrStreamCaptureUnjoined        Result = 904 // captured work was not joined
	ErrStreamCaptureIsolation       Result = 905 // dependency crosses the capture
	ErrStreamCaptureImplicit        Result = 906 // implicit dependency on the legacy stream
	ErrCapturedEvent                Result = 907 // event was recorded in a capture
	ErrStreamCaptureWrongThread     Result = 908 // capture was begun by another thread
	ErrTimeout                      Result = 909 // timed out
	ErrGraphExecUpdateFailure       Result = 910 // graph could not be updated
	ErrExternalDevice               Result = 911 // error of an external device
	ErrInvalidClusterSize           Result = 912 // invalid cluster size
	ErrFunctionNotLoaded            Result = 913 // function is not loaded
	ErrInvalidResourceType          Result = 914 // invalid type of resource
	ErrInvalidResourceConfiguration Result = 915 // invalid configuration of a resource
	ErrKeyRotation                  Result = 916 // key rotation is under way
	ErrStreamDetached               Result = 917 // stream is detached
	ErrGraphRecaptureFailure        Result = 918 // graph could not be captured again
	ErrFabricNotReady               Result = 919 // fabric is not ready
	ErrUnknown                      Result = 999 // unknown error
)

// Name returns the name that NVIDIA's reference gives to the result, for example "CUDA_ERROR_OUT_OF_MEMORY".
func (r Result) Name() string {
	if t, ok := results[r]; ok {
		return t.name
	}
	return "CUDA_ERROR_" + strconv.Itoa(int(r))
}

// Description returns a short text that says what the result means. If the result is unknown, it returns "".
func (r Result) Description() string { return results[r].description }

// Error returns the name and the description of the result.
func (r Result) Error() string {
	if d := r.Description(); d != "" {
		return r.Name() + ": " + d
	}
	return r.Name()
}

// Sticky reports whether the result means that the context is broken: every later call in this context fails in the same way, until the process
// is started again.
func (r Result) Sticky() bool {
	switch r {
	case ErrECCUncorrectable, ErrNVLinkUncorrectable, ErrContained, ErrIllegalAddress, ErrLaunchTimeout,
		ErrAssert, ErrHardwareStackError, ErrIllegalInstruction, ErrMisalignedAddress,
		ErrInvalidAddressSpace, ErrInvalidPC, ErrLaunchFailed, ErrTensorMemoryLeak, ErrExternalDevice:
		return true
	}
	return false
}
