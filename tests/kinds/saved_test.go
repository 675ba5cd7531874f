package kinds

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// published starts a service, publishes a buffer of random bytes with the name frame, and returns the service and the
// bytes.
func published(t *testing.T, kind mempool.Kind) (*rig.Service, []byte) {
	t.Helper()
	if err := kind.Probe(""); err != nil {
		t.Skip(err)
	}
	s := rig.Serve(t, "--pool", "name=p,max=64MiB,kind="+string(kind))
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	p, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	data := random(100_003)
	l, err := p.TryAllocate(t.Context(), mempool.Bytes(uint64(len(data))))
	require.NoError(t, err)
	require.NoError(t, l.CopyFrom(context.Background(), 0, data))
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: "frame", Keep: true}))
	require.NoError(t, l.Release(false))
	require.NoError(t, c.Close())
	return s, data
}

// poolsvc runs the program poolsvc. It returns the output, including standard error, and an error if the program
// failed.
func poolsvc(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(context.Background(), rig.Poolsvc(t), args...).CombinedOutput()
	return string(out), err
}

func TestABufferOfEveryKindIsExportedToAFileAndImported(t *testing.T) {
	for _, kind := range mempool.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s, data := published(t, kind)
			dir := t.TempDir()
			file, copied := filepath.Join(dir, "frame.json"), filepath.Join(dir, "frame.bin")
			out, err := poolsvc(t, "export", "frame", file, "--socket", s.Socket)
			require.NoError(t, err, out)
			out, err = poolsvc(t, "import", file, copied)
			require.NoError(t, err, out)
			got, err := os.ReadFile(copied)
			require.NoError(t, err)
			assert.True(t, bytes.Equal(data, got))
			out, err = poolsvc(t, "import", file)
			require.NoError(t, err, out)
			assert.Contains(t, out, "100003 bytes of kind "+string(kind))

			s.Kill(t)
			out, err = poolsvc(t, "import", file)
			require.Error(t, err)
			assert.Contains(t, out, mempool.ErrOwnerDead.Error())
		})
	}
}

func TestABareHandleIsImported(t *testing.T) {
	s, data := published(t, mempool.Legacy)
	file := filepath.Join(t.TempDir(), "handle")
	out, err := poolsvc(t, "export", "frame", file, "--raw", "--socket", s.Socket)
	require.NoError(t, err, out)
	raw, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Len(t, raw, 64, "what cuIpcOpenMemHandle takes")
	copied := filepath.Join(t.TempDir(), "copy")
	out, err = poolsvc(t, "import", file, copied, "--bytes", "100003")
	require.NoError(t, err, out)
	got, err := os.ReadFile(copied)
	require.NoError(t, err)
	assert.True(t, bytes.Equal(data, got))
}

func TestAFileOfAnotherKindHasNoBareHandle(t *testing.T) {
	s, _ := published(t, mempool.Host)
	out, err := poolsvc(t, "export", "frame", "-", "--raw", "--socket", s.Socket)
	require.Error(t, err)
	assert.Contains(t, out, "no handle of bytes")
}

func TestAShortFileIsNotImported(t *testing.T) {
	file := filepath.Join(t.TempDir(), "short")
	require.NoError(t, os.WriteFile(file, random(63), 0o600))
	out, err := poolsvc(t, "import", file)
	require.Error(t, err)
	assert.Contains(t, out, "63 bytes")
}

func TestAFileOfAnEarlierServiceIsStale(t *testing.T) {
	s, _ := published(t, mempool.Host)
	file := filepath.Join(t.TempDir(), "frame.json")
	out, err := poolsvc(t, "export", "frame", file, "--socket", s.Socket)
	require.NoError(t, err, out)
	s.Kill(t)
	rig.ServeAt(t, s.Socket)
	out, err = poolsvc(t, "import", file)
	require.Error(t, err)
	assert.Contains(t, out, "was restarted")
}
