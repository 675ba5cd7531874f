package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// logs are the files that programs give a service to log into: one that is appended to, and memory that has an offset.
func logs(t *testing.T) map[string]*os.File {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte("before\n"), 0o600))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	require.NoError(t, err)
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	memory := os.NewFile(uintptr(fd), "log")
	t.Cleanup(func() { file.Close(); memory.Close() })
	return map[string]*os.File{"a file": file, "memory": memory}
}

func TestALogKeepsItsLastLinesWithinItsBound(t *testing.T) {
	for name, file := range logs(t) {
		b := &boundedLog{file: file, most: 1000}
		for i := range 500 {
			_, err := fmt.Fprintf(b, "line %d\n", i)
			require.NoError(t, err)
			info, err := file.Stat()
			require.NoError(t, err)
			require.LessOrEqual(t, info.Size(), int64(1000), name)
		}
		info, err := file.Stat()
		require.NoError(t, err)
		text := make([]byte, info.Size())
		_, err = file.ReadAt(text, 0)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		first := 500 - len(lines)
		assert.Greater(t, len(lines), 30, name)
		for i, line := range lines {
			assert.Equal(t, fmt.Sprint("line ", first+i), line, "%s: whole lines, up to the last", name)
		}
	}
}

func TestALogBelowItsBoundStaysAsItIs(t *testing.T) {
	file := logs(t)["a file"]
	b := &boundedLog{file: file, most: 1000}
	_, err := b.Write([]byte("after\n"))
	require.NoError(t, err)
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.Equal(t, "before\nafter\n", string(text))
}
