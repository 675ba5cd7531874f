package main

import (
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// logs returns files for the log of a service. One file is opened with the flags that the Python client uses, and two files are opened with
// the flags that a shell uses for `2>` and `2>>`. The fourth file is a memfd without O_APPEND.
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

// memory returns a memfd that has the given seals.
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

// contents returns the content of a file.
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

func TestALogInJSONHasJSONAlone(t *testing.T) {
	file := memory(t, unix.F_SEAL_SHRINK)
	defer file.Close()
	b := bounded1000(t, file)
	b.format.json = true
	log := slog.New(b.format.handler(b, slog.LevelInfo))
	for i := range 50 {
		log.Info("a line", "number", i)
	}
	said := 0
	for line := range strings.Lines(contents(t, file)) {
		var record struct{ Msg string }
		require.NoError(t, json.Unmarshal([]byte(line), &record), line)
		if strings.Contains(record.Msg, "cannot be shortened") {
			said++
		}
	}
	assert.Equal(t, 1, said)
}

// A reader finds the newest lines at any moment. The test reads the file after overwrite has written the newest lines
// to the beginning, and after the next append.
func TestALogThatIsShortenedIsNeverWithoutItsNewestLines(t *testing.T) {
	for name, file := range logs(t) {
		b := bounded1000(t, file)
		for i := range 200 {
			_, err := fmt.Fprintf(b, "line %d\n", i)
			require.NoError(t, err)
		}
		before := contents(t, file)
		tail := before[strings.LastIndex(before[:len(before)/2], "\n")+1:]
		require.NoError(t, overwrite(int(file.Fd()), []byte(tail), 0))
		assert.Equal(t, tail+before[len(tail):], contents(t, file), "%s: the newest lines stand at the beginning before anything goes", name)
		_, err := unix.Write(int(file.Fd()), []byte("at the end\n"))
		require.NoError(t, err)
		assert.True(t, strings.HasSuffix(contents(t, file), "\nat the end\n"), name)
	}
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

func TestWhatOthersAppendWhileALogIsShortenedIsKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	require.NoError(t, os.WriteFile(path, []byte("kept\nold\nold\n"), 0o600))
	file, err := os.OpenFile(path, os.O_RDWR|os.O_APPEND, 0)
	require.NoError(t, err)
	defer file.Close()
	b := bounded1000(t, file)
	other, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	defer other.Close()
	late := strings.Repeat("a line of another process\n", 3)
	_, err = other.WriteString(late)
	require.NoError(t, err)
	kept, err := b.keepLate(int64(len("kept\nold\nold\n")), int64(len("kept\n")))
	require.NoError(t, err)
	assert.Equal(t, "kept\n"+late, contents(t, file)[:kept])
	_, err = other.WriteString("the last\n")
	require.NoError(t, err)
	assert.True(t, strings.HasSuffix(contents(t, file), "process\nthe last\n"), "it still goes to the end")
}
