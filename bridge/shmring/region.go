package shmring

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Size is how many bytes of packets a ring holds, their heads included.
const Size = 1 << 16

// MaxPacket is the longest packet that a ring takes.
const MaxPacket = Size / 4

// FileSize is the size of a ring's file.
const FileSize = dataOffset + Size

// Where the words of a file are, each in a cache line of its own, and its data.
const (
	headOffset   = 0   // bytes that the owner has written into its ring since it was made
	tailOffset   = 64  // bytes that the owner has read from the peer's
	asleepOffset = 128 // 0, or 1 + the head of the peer's ring at which the owner went to sleep
	dataOffset   = 4096
)

// A packet has a head of 8 bytes, its length, and is padded to a multiple of 8.
const (
	headBytes = 8
	mark      = 0               // instead of a length: the next packets come another way
	skip      = uint64(1) << 32 // instead of a length: the next head is at the beginning of the data
)

// Errors of the peer's making, which end what is between the two.
var (
	// ErrCorrupt means that the peer's words contradict each other.
	ErrCorrupt = errors.New("shmring: the peer's ring is corrupt")
	// ErrUnsealed means that the peer could take the memory away.
	ErrUnsealed = errors.New("shmring: the file is no memfd of sealed size")
)

const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// region is a mapped file.
type region []byte

// newFile makes the file of a ring, which cannot change its size.
func newFile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), name)
	err = f.Truncate(FileSize)
	if err == nil {
		err = seal(f, sizeSeals)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

func seal(f *os.File, seals int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
}

// mapFile maps a ring's file; it may be closed afterwards.
func mapFile(f *os.File, write bool) (region, error) {
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnsealed, os.NewSyscallError("fcntl(F_GET_SEALS)", err))
	}
	if seals&sizeSeals != sizeSeals {
		return nil, fmt.Errorf("%w: its seals are %#x", ErrUnsealed, seals)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() != FileSize {
		return nil, fmt.Errorf("%w: it has %d bytes, expected %d", ErrUnsealed, st.Size(), FileSize)
	}
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, FileSize, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	// A child that is forked is nobody's peer.
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(os.NewSyscallError("madvise", err), unix.Munmap(mem))
	}
	return mem, nil
}

func (r region) word(offset int) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&r[offset])) }

// data is the part of the ring from a position to the end of its memory.
func (r region) data(position uint64) []byte { return r[dataOffset+position%Size:] }
