package seqpacket

import (
	"fmt"
	"os"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// FD owns a file descriptor. The owner of an FD must close the FD or take the descriptor. An FD that is neither closed nor taken is a leak.
//
// The caller must not use the result of Raw while another goroutine may close the FD.
type FD struct {
	raw atomic.Int64 // -1 once closed or taken
}

// A test sets these functions to learn which FDs were made, and which were closed or taken.
var onNew, onEnd = func(*FD, int) {}, func(*FD) {}

// NewFD makes an FD that owns raw. It panics if raw is negative.
func NewFD(raw int) *FD {
	if raw < 0 {
		panic(fmt.Sprintf("seqpacket: NewFD(%d)", raw))
	}
	f := new(FD)
	f.raw.Store(int64(raw))
	onNew(f, raw)
	return f
}

// Raw returns the descriptor's number, or -1 if the descriptor was closed or taken. The FD still owns the descriptor.
func (f *FD) Raw() int { return int(f.raw.Load()) }

// Take returns the descriptor's number, and the caller then owns the descriptor. Take returns -1 if the descriptor was closed or taken
// already.
func (f *FD) Take() int {
	raw := f.raw.Swap(-1)
	if raw >= 0 {
		onEnd(f)
	}
	return int(raw)
}

// Close closes the descriptor. A second Close, or a Close after Take, does nothing. Close of a nil FD does nothing, too.
func (f *FD) Close() error {
	if f == nil {
		return nil
	}
	if raw := f.Take(); raw >= 0 {
		return os.NewSyscallError("close", unix.Close(raw))
	}
	return nil
}

// File moves the descriptor into an os.File with the given name. It returns nil if the descriptor was closed or taken already.
func (f *FD) File(name string) *os.File {
	raw := f.Take()
	if raw < 0 {
		return nil
	}
	return os.NewFile(uintptr(raw), name)
}
