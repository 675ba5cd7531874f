package seqpacket

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// childEnv is the name of an environment variable. If the variable is set, the test binary runs no tests, but is a client: it connects to
// the path in the variable, sends one packet and waits until the test kills it.
const childEnv = "SEQPACKET_TEST_CHILD"

func TestMain(m *testing.M) {
	if path := os.Getenv(childEnv); path != "" {
		os.Exit(child(path))
	}
	if os.Getenv(echoEnv) != "" {
		os.Exit(answer(os.Getenv(echoEnv)))
	}
	if os.Getenv(flightEnv) != "" {
		os.Exit(flight())
	}
	traceFDs()
	before := openFiles()
	code := m.Run()
	if code == 0 {
		code = leaks(before)
	}
	os.Exit(code)
}

// leaks reports goroutines and descriptors that a test left behind.
func leaks(before int) int {
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if l := leakedFDs(); len(l) > 0 {
		fmt.Fprintln(os.Stderr, "leaked:", strings.Join(l, "\n"))
		return 1
	}
	if after := openFiles(); after > before {
		fmt.Fprintf(os.Stderr, "%d descriptors were open before the tests and %d after\n", before, after)
		return 1
	}
	return 0
}

// openFiles returns how many descriptors this process has open. openFiles first uses a pipe, because Go's poller opens descriptors at its
// first use.
func openFiles() int {
	r, w, err := os.Pipe()
	if err != nil {
		panic(err)
	}
	defer r.Close()
	defer w.Close()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		panic(err)
	}
	return len(entries)
}

func child(path string) int {
	c, err := Dial(context.Background(), path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	if err := c.Send([]byte("hello"), nil); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var buf [16]byte
	n, _, _ := c.Recv(buf[:]) // if the test sends "close", close the connection and keep running
	if string(buf[:n]) == "close" {
		c.Close()
	}
	select {}
}

// pair returns the two ends of a connection, which are closed when the test ends.
func pair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	a, b, err := Pair()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// listener returns a Listener whose socket is in a directory that only this test uses.
func listener(t testing.TB, config ListenConfig) *Listener {
	t.Helper()
	l, err := Listen(t.TempDir()+"/s", config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

// dial connects to l and returns both ends of the connection.
func dial(t testing.TB, l *Listener) (service, client *Conn) {
	t.Helper()
	client, err := Dial(t.Context(), l.Path())
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	service, err = l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { service.Close() })
	return service, client
}
