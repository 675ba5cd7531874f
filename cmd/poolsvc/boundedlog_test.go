package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// logs are the files that programs give a service to log into: opened as Python, a shell's `2>` and `2>>` do, and memory that has an offset.
func logs(t *testing.T) map[string]*os.File {
	t.Helper()
	all := make(map[string]*os.File)
	for name, flags := range map[string]int{"a file": os.O_RDWR | os.O_APPEND, "2>": os.O_WRONLY | os.O_TRUNC, "2>>": os.O_WRONLY | os.O_APPEND} {
		path := filepath.Join(t.TempDir(), "log")
		require.NoError(t, os.WriteFile(path, []byte("before\n"), 0o600))
		file, err := os.OpenFile(path, flags, 0)
		require.NoError(t, err)
		all[name] = file
	}
	all["memory"] = memory(t, 0)
	t.Cleanup(func() {
		for _, file := range all {
			assert.NoError(t, file.Close())
		}
	})
	return all
}

// memory is a file of memory that was given seals.
func memory(t *testing.T, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("log", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return os.NewFile(uintptr(fd), "log")
}

func bounded1000(t *testing.T, file *os.File) *boundedLog {
	t.Helper()
	b, err := newBoundedLog(file, 1000)
	require.NoError(t, err)
	return b
}

// contents is what is in a file.
func contents(t *testing.T, file *os.File) string {
	t.Helper()
	text, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<20))
	require.NoError(t, err)
	return string(text)
}

func TestALogKeepsItsLastLinesWithinItsBound(t *testing.T) {
	for name, file := range logs(t) {
		b := bounded1000(t, file)
		for i := range 500 {
			_, err := fmt.Fprintf(b, "line %d\n", i)
			require.NoError(t, err)
			info, err := file.Stat()
			require.NoError(t, err)
			require.LessOrEqual(t, info.Size(), int64(1000), name)
		}
		lines := strings.Split(strings.TrimSuffix(contents(t, file), "\n"), "\n")
		first := 500 - len(lines)
		assert.Greater(t, len(lines), 30, name)
		for i, line := range lines {
			assert.Equal(t, fmt.Sprint("line ", first+i), line, "%s: whole lines, up to the last", name)
		}
	}
}

func TestALogBelowItsBoundStaysAsItIs(t *testing.T) {
	file := logs(t)["a file"]
	b := bounded1000(t, file)
	_, err := b.Write([]byte("after\n"))
	require.NoError(t, err)
	text, err := os.ReadFile(file.Name())
	require.NoError(t, err)
	assert.Equal(t, "before\nafter\n", string(text))
}

func TestALineThatIsLongerThanTheBoundIsCut(t *testing.T) {
	for name, file := range logs(t) {
		b := bounded1000(t, file)
		n, err := b.Write([]byte(strings.Repeat("x", 3000) + "\n"))
		require.NoError(t, err)
		assert.Equal(t, 3001, n, name)
		assert.Equal(t, strings.Repeat("x", 999)+"\n", contents(t, file), name)
	}
}

func TestWhatElseWritesToTheDescriptorOverwritesNothing(t *testing.T) {
	for name, file := range logs(t) {
		b := bounded1000(t, file)
		_, err := b.Write([]byte("one\n"))
		require.NoError(t, err)
		_, err = unix.Write(int(file.Fd()), []byte("two\n"))
		require.NoError(t, err)
		_, err = b.Write([]byte("three\n"))
		require.NoError(t, err)
		assert.Equal(t, "one\ntwo\nthree\n", strings.TrimPrefix(contents(t, file), "before\n"), name)
	}
}

func TestALogThatCannotBeShortenedSaysSoOnceAndLosesNothing(t *testing.T) {
	file := memory(t, unix.F_SEAL_SHRINK)
	defer file.Close()
	b := bounded1000(t, file)
	for i := range 500 {
		_, err := fmt.Fprintf(b, "line %d\n", i)
		require.NoError(t, err)
	}
	text := contents(t, file)
	assert.Equal(t, 1, strings.Count(text, "the log cannot be shortened"))
	assert.Equal(t, 500, strings.Count(text, "\nline ")+1)
}

func TestALogThatMayNotBeReadCannotBeBounded(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may read every file: run the tests as another user")
	}
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, nil, 0o200))
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer file.Close()
	_, err = newBoundedLog(file, 1000)
	require.ErrorIs(t, err, os.ErrPermission)
	assert.ErrorContains(t, err, "opened for writing only")
}
