package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// TestMain runs the tests. A test also starts this program as a child process,
// with the environment variable POOLBRIDGE_EXAMPLE_READER. In the child
// process, TestMain runs the client instead of the tests.
func TestMain(m *testing.M) {
	if os.Getenv("POOLBRIDGE_EXAMPLE_READER") == "" {
		goleak.VerifyTestMain(m)
		return
	}
	if err := read(context.Background()); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

func read(ctx context.Context) error {
	client, err := bridge.Dial(ctx, bridge.DefaultSocket())
	if err != nil {
		return err
	}
	defer client.Close()
	lease, err := client.TryGet(ctx, "reading.txt", bridge.LeaseOptions{})
	if err != nil {
		return err
	}
	text := make([]byte, lease.Grant().Bytes)
	if err := lease.CopyTo(context.Background(), text, 0); err != nil {
		return err
	}
	fmt.Println(string(text))
	return lease.Release(false)
}

func TestAnotherProcessReadsWhatThisOneOwns(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "run", "s")
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	published, ended := make(chan struct{}), make(chan error)
	go func() { ended <- serve(ctx, socket, mempool.Host, func() { close(published) }) }()
	select {
	case <-published:
	case err := <-ended:
		require.NoError(t, err)
	}

	exe, err := os.Executable()
	require.NoError(t, err)
	reader := exec.Command(exe)
	reader.Env = append(os.Environ(), "POOLBRIDGE_EXAMPLE_READER=1", "POOLBRIDGE_SOCKET="+socket, "GORACE=atexit_sleep_ms=0")
	out, err := reader.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Equal(t, "one buffer, many readers, no copy\n", string(out))

	stop()
	assert.NoError(t, <-ended)
}
