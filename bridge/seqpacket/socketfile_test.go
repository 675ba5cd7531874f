package seqpacket

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// loss is a call of OnLost.
type loss struct{ lost, failed error }

// guarded returns a listener at path, and a channel with the calls of OnLost. The listener accepts nothing until `accept` is called. From then
// on, it closes each connection that it accepts.
func guarded(t *testing.T, path string, mode fs.FileMode) (l *Listener, losses chan loss, accept func()) {
	t.Helper()
	losses = make(chan loss, 100)
	l, err := Listen(path, ListenConfig{Mode: mode, OnLost: func(lost, failed error) { losses <- loss{lost, failed} }})
	require.NoError(t, err)
	l.every = time.Millisecond
	done := make(chan struct{})
	started := false
	t.Cleanup(func() {
		assert.NoError(t, l.Close())
		if started {
			<-done
		}
	})
	return l, losses, func() {
		started = true
		go func() {
			defer close(done)
			for {
				c, err := l.Accept()
				if err != nil {
					assert.ErrorIs(t, err, os.ErrClosed)
					return
				}
				assert.NoError(t, c.Close())
			}
		}()
	}
}

func TestASocketWhoseFileIsLostIsMadeAgain(t *testing.T) {
	for name, lose := range map[string]func(path string) error{
		"the socket": os.Remove,
		"the folder": func(path string) error { // at once: RemoveAll alone races with the listener, which makes it again
			gone := filepath.Dir(path) + ".gone"
			if err := os.Rename(filepath.Dir(path), gone); err != nil {
				return err
			}
			return os.RemoveAll(gone)
		},
		"the lock, then the socket": func(path string) error {
			if err := os.Remove(path + ".lock"); err != nil {
				return err
			}
			return os.Remove(path)
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "run", "s")
			l, losses, accept := guarded(t, path, 0o660)
			accept()
			for range 2 {
				require.NoError(t, lose(path))
				one := <-losses
				require.ErrorIs(t, one.lost, ErrSocketLost)
				require.NoError(t, one.failed)
				require.NoError(t, l.Check())
				info, err := os.Lstat(path)
				require.NoError(t, err)
				assert.Equal(t, fs.ModeSocket|0o660, info.Mode())
				c, err := Dial(t.Context(), path)
				require.NoError(t, err)
				require.NoError(t, c.Close())
				_, err = Listen(path, ListenConfig{})
				require.ErrorIs(t, err, ErrInUse)
			}
			require.NoError(t, l.Close())
			assert.NoFileExists(t, path)
		})
	}
}

func TestClientsThatConnectedBeforeTheFileWasLostAreServed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, losses, _ := guarded(t, path, 0)
	early, err := Dial(t.Context(), path)
	require.NoError(t, err)
	defer early.Close()
	require.NoError(t, os.Remove(path))
	l.look()
	require.NoError(t, (<-losses).failed)
	c, err := l.Accept()
	require.NoError(t, err)
	require.NoError(t, c.TrySend([]byte("hello"), nil))
	require.NoError(t, c.Close())
	data := make([]byte, 10)
	n, _, err := early.Recv(data)
	require.NoError(t, err)
	assert.Equal(t, "hello", string(data[:n]))
}

func TestAListenerNeverRemovesTheSocketOfAnotherService(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first, losses, accept := guarded(t, path, 0)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Remove(path+".lock"))
	second, _, acceptSecond := guarded(t, path, 0)
	acceptSecond()
	require.ErrorIs(t, first.Check(), ErrSocketLost)
	accept()
	one := <-losses
	require.ErrorIs(t, one.lost, ErrSocketLost)
	require.ErrorIs(t, one.failed, ErrInUse)
	require.NoError(t, second.Check())

	require.NoError(t, second.Close())
	one = <-losses
	require.NoError(t, one.failed, "once the other service has ended, the path is free")
	third, err := Dial(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, third.Close())
}

func TestTheEndOfAListenerLeavesWhatOthersPutAtItsPath(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, losses, accept := guarded(t, path, 0)
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, []byte("keep"), 0o600))
	accept()
	one := <-losses
	require.ErrorContains(t, one.lost, "another file is at "+path)
	require.ErrorIs(t, one.failed, ErrNotSocket)
	require.NoError(t, l.Close())
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	assert.Equal(t, "keep", string(text))
}
