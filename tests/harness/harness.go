package harness

import (
	"bytes"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Patience is longer than any test. A test that waits for this time hangs.
const Patience = time.Hour

// SocketPath returns a path for a socket in a folder of the test's own. Paths of t.TempDir may be too long for a socket.
func SocketPath(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "pb")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "poolsvc.sock")
}

// OpenDir returns a folder of the test's own that other users can reach.
func OpenDir(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	require.NoError(t, os.Chmod(dir, 0o755))
	return dir
}

// OpenFDs returns how many descriptors this process has.
func OpenFDs(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

// Eventually returns as soon as the function `so` returns true. Use Eventually if no event says when the condition becomes true.
func Eventually(t testing.TB, so func() bool) {
	t.Helper()
	for !so() {
		time.Sleep(time.Millisecond)
		require.NoError(t, t.Context().Err())
	}
}

// Log is a log that a test can wait on.
type Log struct {
	mu    sync.Mutex
	lines []byte
	more  chan struct{}
}

// NewLog returns an empty log.
func NewLog() *Log { return &Log{more: make(chan struct{})} }

func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, line...)
	close(l.more)
	l.more = make(chan struct{})
	return len(line), nil
}

// Has reports whether the log holds text.
func (l *Log) Has(text string) bool { return l.Line(text) != "" }

// Count returns how often the log holds text.
func (l *Log) Count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return bytes.Count(l.lines, []byte(text))
}

// Line returns the first line of the log that holds text, or "" if no line does.
func (l *Log) Line(text string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.lines) {
		if bytes.Contains(line, []byte(text)) {
			return string(line)
		}
	}
	return ""
}

// Await waits until the log holds text.
func (l *Log) Await(t testing.TB, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		found, more := bytes.Contains(l.lines, []byte(text)), l.more
		l.mu.Unlock()
		if found {
			return
		}
		select {
		case <-more:
		case <-t.Context().Done():
			t.Fatalf("the log never said %q", text)
		}
	}
}
