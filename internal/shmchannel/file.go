package shmchannel

import (
	"errors"
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// Names of the memfds of a channel.
const (
	RosterName    = "poolbridge:roster"
	SequencerName = "poolbridge:sequencer"
	CursorName    = "poolbridge:cursor"
	TrackName     = "poolbridge:track"
)

// NewFile makes an empty memfd.
func NewFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// makeFile makes a memfd of fixed size of an empty one, or of a new one if `f` is nil. The memfd uses no memory until its pages are written.
func makeFile(f *os.File, name string, bytes uint64) (_ *os.File, err error) {
	if f == nil {
		if f, err = NewFile(name); err != nil {
			return nil, err
		}
	}
	if err = f.Truncate(int64(bytes)); err == nil {
		err = seal(f, sizeSeals|unix.F_SEAL_SEAL)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// ReadOnly opens a memfd again, so that the processes that get the new file cannot map it for writing. Only a process of this user, or of root,
// could open it for writing.
func ReadOnly(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd, failed := -1, error(nil)
	err = raw.Control(func(memfd uintptr) {
		if failed = os.NewSyscallError("fchmod", unix.Fchmod(int(memfd), 0o600)); failed == nil {
			fd, failed = unix.Open(fmt.Sprintf("/proc/self/fd/%d", memfd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		}
	})
	if err = errors.Join(err, failed); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

func seal(f *os.File, seals int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
}

// region is a mapped file.
type region []byte

// mapFile maps a file of the channel. The file must have exactly the size that the parameter `bytes` gives. The caller may close the file
// afterwards.
//
// Errors: [ErrFile]; errors of the system.
func mapFile(f *os.File, bytes uint64, write bool) (region, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrFile, f.Name(), os.NewSyscallError("fcntl(F_GET_SEALS)", err))
	}
	if seals&sizeSeals != sizeSeals {
		return nil, fmt.Errorf("%w: %s: its size is not sealed (seals %#x)", ErrFile, f.Name(), seals)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != int64(bytes) {
		return nil, fmt.Errorf("%w: %s: it has %d bytes, expected %d", ErrFile, f.Name(), st.Size(), bytes)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, int(bytes), prot, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	// A forked child is not a member of the channel and must not have the memory of the channel.
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(os.NewSyscallError("madvise", err), unix.Munmap(mem))
	}
	return mem, nil
}

func (r region) unmap() error {
	if r == nil {
		return nil
	}
	return os.NewSyscallError("munmap", unix.Munmap(r))
}

// at returns a pointer to the value of type T at an offset. The value must lie within the region.
func at[T any](r region, offset uint64) *T {
	var t T
	return (*T)(unsafe.Pointer(&r[offset : offset+uint64(unsafe.Sizeof(t))][0]))
}

// list returns the n values of type T that begin at an offset. All n values must lie within the region.
func list[T any](r region, offset, n uint64) []T {
	var t T
	return unsafe.Slice((*T)(unsafe.Pointer(&r[offset : offset+n*uint64(unsafe.Sizeof(t))][0])), n)
}
