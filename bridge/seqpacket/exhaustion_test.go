package seqpacket

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fillTable uses up all free descriptors of this process, until the caller calls empty.
func fillTable(t *testing.T) (empty func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 128, Max: old.Max}))
	var taken []int
	for {
		fd, err := unix.FcntlInt(0, unix.F_DUPFD_CLOEXEC, 0)
		if err == unix.EMFILE {
			break
		}
		require.NoError(t, err)
		taken = append(taken, fd)
	}
	done := false
	empty = func() {
		if done {
			return
		}
		done = true
		for _, fd := range taken {
			unix.Close(fd)
		}
		require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	}
	t.Cleanup(empty)
	return empty
}

func TestFullTableAcceptWaitsAndDoesNotSpin(t *testing.T) {
	paused := make(chan error, 1)
	l := listener(t, ListenConfig{OnPause: func(err error) { paused <- err }})
	timer := make(chan time.Time)
	var pauses []time.Duration
	l.after = func(d time.Duration) <-chan time.Time {
		pauses = append(pauses, d)
		return timer
	}
	client, err := Dial(t.Context(), l.Path())
	require.NoError(t, err)
	defer client.Close()
	empty := fillTable(t)

	accepted := make(chan *Conn)
	go func() {
		c, err := l.Accept()
		require.NoError(t, err)
		accepted <- c
	}()
	// The channel `paused` has room for one value, and OnPause sends to it. In each pause, Accept waits until the test sends to the channel
	// `timer`. If Accept tried again without a pause, OnPause would soon block, and Accept would never receive from `timer`.
	for range 10 {
		err := <-paused
		require.ErrorIs(t, err, ErrFDTableFull)
		require.ErrorIs(t, err, unix.EMFILE)
		timer <- time.Time{}
	}
	<-paused
	empty()
	timer <- time.Time{}
	c := <-accepted
	defer c.Close()
	require.Equal(t, 5*time.Millisecond, pauses[0])
	require.Equal(t, 10*time.Millisecond, pauses[1])
	require.Equal(t, time.Second, pauses[10])
	require.Len(t, pauses, 11)
	require.NoError(t, client.Send([]byte("x"), nil))
	_, _, err = c.Recv(make([]byte, 1))
	require.NoError(t, err)
}

func TestFullTableCloseWakesAPausedAccept(t *testing.T) {
	paused := make(chan error, 1)
	l := listener(t, ListenConfig{OnPause: func(err error) { paused <- err }})
	l.after = func(time.Duration) <-chan time.Time { return nil }
	client, err := Dial(t.Context(), l.Path())
	require.NoError(t, err)
	defer client.Close()
	empty := fillTable(t)
	done := make(chan error)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	<-paused
	require.NoError(t, l.Close())
	require.Error(t, <-done)
	empty()
}

func TestFullTableReceivingDescriptors(t *testing.T) {
	a, b := pair(t)
	r, w := pipe(t)
	require.NoError(t, a.Send([]byte("x"), repeat(w, 2)))
	require.NoError(t, a.Send([]byte("y"), nil))
	require.NoError(t, w.Close())
	empty := fillTable(t)
	buf := make([]byte, 1)
	_, _, err := b.Recv(buf)
	require.ErrorIs(t, err, ErrControlTruncated)
	require.ErrorIs(t, err, ErrFDTableFull)
	_, _, err = b.Recv(buf)
	require.NoError(t, err, "the connection works on")
	empty()
	requireNoWriter(t, r)
}

func TestFullTableMakesTypedErrors(t *testing.T) {
	a, _ := pair(t)
	l := listener(t, ListenConfig{})
	empty := fillTable(t)
	defer empty()
	_, _, err := Pair()
	require.ErrorIs(t, err, ErrFDTableFull)
	_, err = Dial(t.Context(), l.Path())
	require.ErrorIs(t, err, ErrFDTableFull)
	_, err = a.PeerPIDFD()
	require.ErrorIs(t, err, ErrFDTableFull)
}
