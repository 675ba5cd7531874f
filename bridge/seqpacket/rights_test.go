package seqpacket

import (
	"encoding/binary"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pipe returns the read and the write end of a pipe. When nobody has the write end open any more, a read of the read end reports the end of
// the file.
func pipe(t *testing.T) (r *os.File, w *FD) {
	t.Helper()
	var p [2]int
	require.NoError(t, unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	r = os.NewFile(uintptr(p[0]), "pipe")
	w = NewFD(p[1])
	t.Cleanup(func() { r.Close(); w.Close() })
	return r, w
}

// requireNoWriter fails unless every descriptor of the pipe's write end is closed.
func requireNoWriter(t *testing.T, r *os.File) {
	t.Helper()
	raw, err := r.SyscallConn() // r.Fd would set r to blocking mode
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		n, err := unix.Read(int(fd), make([]byte, 1))
		require.NoError(t, err, "EAGAIN: somebody still holds the write end")
		require.Zero(t, n)
	}))
}

func repeat(fd *FD, n int) []int {
	raws := make([]int, n)
	for i := range raws {
		raws[i] = fd.Raw()
	}
	return raws
}

func TestDescriptorsArriveWithTheirPacket(t *testing.T) {
	a, b := pair(t)
	_, w1 := pipe(t)
	_, w2 := pipe(t)
	require.NoError(t, a.Send([]byte("none"), nil))
	require.NoError(t, a.Send([]byte("two"), []int{w1.Raw(), w2.Raw()}))
	require.NoError(t, a.Send([]byte("eight"), repeat(w1, MaxFDs)))
	buf := make([]byte, 16)

	n, fds, err := b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, "none", string(buf[:n]))
	require.Zero(t, fds.Len())
	require.Nil(t, fds.Next())
	require.NoError(t, fds.Close())

	_, fds, err = b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, 2, fds.Len())
	for _, want := range []*FD{w1, w2} {
		got := fds.Next()
		requireSameFile(t, want.Raw(), got.Raw())
		flags, err := unix.FcntlInt(uintptr(got.Raw()), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
		require.NoError(t, got.Close())
	}
	require.Nil(t, fds.Next())

	_, fds, err = b.Recv(buf)
	require.NoError(t, err)
	require.Equal(t, MaxFDs, fds.Len())
	require.NoError(t, fds.Close())
}

func requireSameFile(t *testing.T, a, b int) {
	t.Helper()
	var x, y unix.Stat_t
	require.NoError(t, unix.Fstat(a, &x))
	require.NoError(t, unix.Fstat(b, &y))
	require.Equal(t, x.Ino, y.Ino)
}

func TestSendRefusesTooManyDescriptors(t *testing.T) {
	a, _ := pair(t)
	_, w := pipe(t)
	require.ErrorIs(t, a.Send([]byte("x"), repeat(w, MaxFDs+1)), ErrTooManyFDs)
}

func TestTruncatedControlMessageLeavesNoDescriptor(t *testing.T) {
	a, b := pair(t)
	r, w := pipe(t)
	sendRaw(t, a, []byte("data still arrives"), repeat(w, 253)) // the kernel sends at most 253 descriptors
	require.NoError(t, w.Close())
	before := openFiles()
	n, fds, err := b.Recv(make([]byte, 64))
	require.ErrorIs(t, err, ErrControlTruncated)
	require.NotErrorIs(t, err, ErrFDTableFull)
	require.Zero(t, n)
	require.Nil(t, fds)
	require.Equal(t, before, openFiles())
	requireNoWriter(t, r)
}

func TestTruncatedDataLeavesNoDescriptor(t *testing.T) {
	a, b := pair(t)
	r, w := pipe(t)
	require.NoError(t, a.Send([]byte("too long"), repeat(w, 3)))
	require.NoError(t, w.Close())
	_, fds, err := b.Recv(make([]byte, 2))
	require.ErrorIs(t, err, ErrDataTruncated)
	require.Nil(t, fds)
	requireNoWriter(t, r)
}

func TestEmptyPacketLeavesNoDescriptor(t *testing.T) {
	a, b := pair(t)
	r, w := pipe(t)
	require.NoError(t, a.do(func(fd int) error { return sendEmpty(fd, unix.UnixRights(w.Raw())) }))
	require.NoError(t, w.Close())
	_, fds, err := b.Recv(make([]byte, 16))
	require.ErrorIs(t, err, ErrEmptyPacket)
	require.Nil(t, fds)
	requireNoWriter(t, r)
}

// The size of the buffer for n descriptors is rounded up, so n+1 descriptors may fit.
func TestSurplusDescriptorsAreClosed(t *testing.T) {
	a, _ := pair(t)
	r, w := pipe(t)
	dups := make([]int, MaxFDs+1)
	for i := range dups {
		dups[i] = dup(t, w)
	}
	require.NoError(t, w.Close())
	_, fds, err := a.accept(1, unix.UnixRights(dups...), 0)
	require.ErrorIs(t, err, ErrSurplusFDs)
	require.Nil(t, fds)
	requireNoWriter(t, r)
}

func TestControlMessagesAreAllParsed(t *testing.T) {
	_, w := pipe(t)
	dup := func() int { return dup(t, w) }
	var control []byte
	control = append(control, unix.UnixRights(dup(), dup(), dup())...)
	control = append(control, unix.UnixCredentials(&unix.Ucred{})...)
	control = append(control, unix.UnixRights(dup())...)
	fds := rights(control)
	require.Equal(t, 4, fds.Len())
	require.NoError(t, fds.Close())

	// If the length in a control message is greater than the buffer, rights still reads the descriptors that the buffer has.
	control = unix.UnixRights(dup(), dup())
	binary.NativeEndian.PutUint64(control, 4096)
	fds = rights(control)
	require.Equal(t, 2, fds.Len())
	require.NoError(t, fds.Close())

	for n := range unix.SizeofCmsghdr {
		require.Nil(t, rights(make([]byte, n)))
	}
	require.Nil(t, rights(make([]byte, 64)), "a length shorter than its own head")
}

func TestDescriptorsThatNobodyReadGoWithTheConnection(t *testing.T) {
	a, b := pair(t)
	r, w := pipe(t)
	require.NoError(t, a.Send([]byte("x"), []int{w.Raw()}))
	require.NoError(t, w.Close())
	require.NoError(t, b.Close())
	require.NoError(t, a.Close())
	requireNoWriter(t, r)
}

// dup returns a second descriptor of the same open file.
func dup(t *testing.T, f *FD) int {
	t.Helper()
	raw, err := unix.Dup(f.Raw())
	require.NoError(t, err)
	return raw
}
