//go:build !cgo || !linux

package driver

// This file is for builds without cgo and for systems that are not Linux. Such a build has no driver, and every function except Load and
// callName returns this status.
const noDriver = Status(uint32(1<<32 + ResultNoDriver))

func callName(int) string { return "" }

// Load always fails.
func Load() (why string, ok bool) { return "built without cgo, or not for Linux", false }

func Init() Status                                                   { return noDriver }
func Version() (int, Status)                                         { return 0, noDriver }
func DeviceCount() (int, Status)                                     { return 0, noDriver }
func DeviceGet(int) (int32, Status)                                  { return 0, noDriver }
func DeviceName(int32) (string, Status)                              { return "", noDriver }
func DeviceUUID(int32) ([16]byte, Status)                            { return [16]byte{}, noDriver }
func DeviceTotalMem(int32) (uint64, Status)                          { return 0, noDriver }
func DeviceAttribute(int32, int) (int, Status)                       { return 0, noDriver }
func DevicePCIBusID(int32) (string, Status)                          { return "", noDriver }
func DeviceCanAccessPeer(int32, int32) (bool, Status)                { return false, noDriver }
func PrimaryRetain(int32) (uintptr, Status)                          { return 0, noDriver }
func PrimaryRelease(int32) Status                                    { return noDriver }
func CtxCreate(int32) (uintptr, Status)                              { return 0, noDriver }
func CtxDestroy(uintptr) Status                                      { return noDriver }
func CtxSynchronize(uintptr) Status                                  { return noDriver }
func MemInfo(uintptr) (uint64, uint64, Status)                       { return 0, 0, noDriver }
func Current() (uintptr, Status)                                     { return 0, noDriver }
func StreamCreate(uintptr) (uintptr, Status)                         { return 0, noDriver }
func StreamDestroy(uintptr, uintptr) Status                          { return noDriver }
func StreamSynchronize(uintptr, uintptr) Status                      { return noDriver }
func StreamQuery(uintptr, uintptr) Status                            { return noDriver }
func StreamWaitEvent(uintptr, uintptr, uintptr) Status               { return noDriver }
func StreamWriteValue64(uintptr, uintptr, uint64, uint64) Status     { return noDriver }
func StreamWaitValue64(uintptr, uintptr, uint64, uint64) Status      { return noDriver }
func EventCreate(uintptr, bool, bool) (uintptr, Status)              { return 0, noDriver }
func EventDestroy(uintptr, uintptr) Status                           { return noDriver }
func EventRecord(uintptr, uintptr, uintptr) Status                   { return noDriver }
func EventQuery(uintptr, uintptr) Status                             { return noDriver }
func EventSynchronize(uintptr, uintptr) Status                       { return noDriver }
func EventElapsed(uintptr, uintptr, uintptr) (float32, Status)       { return 0, noDriver }
func EventExport(uintptr, uintptr) ([64]byte, Status)                { return [64]byte{}, noDriver }
func EventOpen(uintptr, *[64]byte) (uintptr, Status)                 { return 0, noDriver }
func PoolCreate(uintptr, PoolProps) (uintptr, Status)                { return 0, noDriver }
func PoolDestroy(uintptr, uintptr) Status                            { return noDriver }
func PoolTrim(uintptr, uintptr, uint64) Status                       { return noDriver }
func PoolAttribute(uintptr, uintptr, int) (uint64, Status)           { return 0, noDriver }
func PoolSetAttribute(uintptr, uintptr, int, uint64) Status          { return noDriver }
func PoolSetAccess(uintptr, uintptr, Location, int) Status           { return noDriver }
func PoolAccess(uintptr, uintptr, Location) (int, Status)            { return 0, noDriver }
func PoolAlloc(uintptr, uintptr, uintptr, uint64) (uint64, Status)   { return 0, noDriver }
func PoolFree(uintptr, uintptr, uint64) Status                       { return noDriver }
func PoolExportFD(uintptr, uintptr) (int, Status)                    { return 0, noDriver }
func PoolImportFD(uintptr, int) (uintptr, Status)                    { return 0, noDriver }
func PoolExportPtr(uintptr, uint64) ([64]byte, Status)               { return [64]byte{}, noDriver }
func PoolImportPtr(uintptr, uintptr, *[64]byte) (uint64, Status)     { return 0, noDriver }
func CopyHtoD(uintptr, uint64, []byte) Status                        { return noDriver }
func CopyDtoH(uintptr, []byte, uint64) Status                        { return noDriver }
func CopyDtoD(uintptr, uint64, uint64, uint64) Status                { return noDriver }
func CopyHtoDAsync(uintptr, uintptr, uint64, uintptr, uint64) Status { return noDriver }
func CopyDtoHAsync(uintptr, uintptr, uintptr, uint64, uint64) Status { return noDriver }
func CopyDtoDAsync(uintptr, uintptr, uint64, uint64, uint64) Status  { return noDriver }
func Memset8(uintptr, uintptr, uint64, uint8, uint64) Status         { return noDriver }
func Memset32(uintptr, uintptr, uint64, uint32, uint64) Status       { return noDriver }
func HostAlloc(uintptr, uint64) (uintptr, uint64, Status)            { return 0, 0, noDriver }
func HostFree(uintptr, uintptr) Status                               { return noDriver }
func HostRegister(uintptr, uintptr, uint64, uint32) (uint64, Status) { return 0, noDriver }
func HostUnregister(uintptr, uintptr) Status                         { return noDriver }
func MemAlloc(uintptr, uint64) (uint64, Status)                      { return 0, noDriver }
func MemFree(uintptr, uint64) Status                                 { return noDriver }
func AddressRange(uintptr, uint64) (uint64, uint64, Status)          { return 0, 0, noDriver }
func IPCMemHandle(uintptr, uint64) ([64]byte, Status)                { return [64]byte{}, noDriver }
func IPCOpenMem(uintptr, *[64]byte) (uint64, Status)                 { return 0, noDriver }
func IPCCloseMem(uintptr, uint64) Status                             { return noDriver }
func VMMGranularity(uintptr, int32) (uint64, Status)                 { return 0, noDriver }
func VMMCreate(uintptr, int32, uint64) (uint64, Status)              { return 0, noDriver }
func VMMRelease(uintptr, uint64) Status                              { return noDriver }
func VMMExport(uintptr, uint64) (int, Status)                        { return 0, noDriver }
func VMMImport(uintptr, int) (uint64, Status)                        { return 0, noDriver }
func VMMMap(uintptr, uint64, uint64, int32, int) (uint64, Status)    { return 0, noDriver }
func VMMUnmap(uintptr, uint64, uint64) Status                        { return noDriver }
func VMMReleaseRange(uintptr, uint64, uint64) Status                 { return noDriver }
func VMMSetAccess(uintptr, uint64, uint64, int32, int) Status        { return noDriver }
func ModuleLoad(uintptr, []byte) (uintptr, string, Status)           { return 0, "", noDriver }
func ModuleUnload(uintptr, uintptr) Status                           { return noDriver }
func ModuleFunction(uintptr, uintptr, string) (uintptr, Status)      { return 0, noDriver }
func Launch(uintptr, uintptr, uintptr, *[6]uint32, uint32, *[MaxLaunchArgs]uint64, int) Status {
	return noDriver
}
func Pointer(uintptr, uint64) (PointerInfo, Status) { return PointerInfo{}, noDriver }
