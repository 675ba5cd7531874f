package seqpacket

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestClosingAnFDAgainClosesNobodyElsesDescriptor(t *testing.T) {
	_, w := pipe(t)
	_, other := pipe(t)
	raw := w.Raw()
	require.NoError(t, w.Close())
	require.NoError(t, unix.Dup3(other.Raw(), raw, unix.O_CLOEXEC)) // the new descriptor has the number that has just become free
	defer unix.Close(raw)
	require.NoError(t, w.Close())
	_, err := unix.FcntlInt(uintptr(raw), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.Equal(t, -1, w.Raw())
}

func TestTakenFDIsTheTakers(t *testing.T) {
	r, w := pipe(t)
	raw := w.Take()
	require.NoError(t, w.Close())
	require.Equal(t, -1, w.Take())
	require.Nil(t, w.File("w"))
	require.NoError(t, unix.Close(raw))
	requireNoWriter(t, r)
}

func TestNilFDCloses(t *testing.T) {
	var f *FD
	require.NoError(t, f.Close())
	require.Panics(t, func() { NewFD(-1) })
}

func TestTracerFindsAPlantedLeak(t *testing.T) {
	_, w := pipe(t)
	leaks := strings.Join(leakedFDs(), "\n")
	require.Contains(t, leaks, "seqpacket.pipe")
	require.Contains(t, leaks, "TestTracerFindsAPlantedLeak")
	require.NoError(t, w.Close())
	require.NotContains(t, strings.Join(leakedFDs(), "\n"), "TestTracerFindsAPlantedLeak")
}
