package cuda

import (
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

// MinDriverVersion is the oldest driver version that this package works with. The package needs two features that CUDA 12.0 added:
// cuGetProcAddress_v2, and stream memory operations that need no module parameter of the kernel driver.
const MinDriverVersion = 12000

var (
	loadMu sync.Mutex
	loaded atomic.Bool // the call table is filled
	ready  atomic.Bool // cuInit has succeeded with a driver that is new enough
)

// Init opens the driver library and initialises the driver. Every function of this package that needs the driver calls Init, so a program calls
// Init itself only to find out early whether there is a driver. A program may call Init any number of times. If Init fails, the program can call
// it again, and Init tries again.
//
// Errors: ErrNoDriver, ErrDriverTooOld, and the errors of cuInit, most often ErrNoDevice and ErrSystemNotReady.
func Init() error {
	if ready.Load() {
		return nil
	}
	return initialise()
}

func initialise() error {
	loadMu.Lock()
	defer loadMu.Unlock()
	if ready.Load() {
		return nil
	}
	if err := load(); err != nil {
		return err
	}
	v, st := driver.Version()
	if st != 0 {
		return failure(st, "Init", noDevice)
	}
	if v < MinDriverVersion {
		return &Error{
			Op: "Init", Device: noDevice, Result: ErrDriverTooOld,
			Detail: fmt.Sprintf("it speaks CUDA %s, needed is %s", versionText(v), versionText(MinDriverVersion)),
		}
	}
	if st := driver.Init(); st != 0 {
		return failure(st, "Init", noDevice)
	}
	ready.Store(true)
	return nil
}

// load fills the call table. The caller holds loadMu.
func load() error {
	if loaded.Load() {
		return nil
	}
	why, ok := driver.Load()
	if !ok {
		return &Error{Op: "dlopen", Device: noDevice, Result: ErrNoDriver, Detail: why}
	}
	loaded.Store(true)
	return nil
}

// DriverVersion returns the newest CUDA version that the driver supports, for example 13000 for CUDA 13.0. DriverVersion needs no GPU.
//
// Errors: ErrNoDriver.
func DriverVersion() (int, error) {
	loadMu.Lock()
	err := load()
	loadMu.Unlock()
	if err != nil {
		return 0, err
	}
	v, st := driver.Version()
	return v, failure(st, "DriverVersion", noDevice)
}

func versionText(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
