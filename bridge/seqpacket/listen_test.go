package seqpacket

import (
	"context"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestMissingDirectoryIsMadePrivate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run", "poolbridge")
	l, err := Listen(filepath.Join(dir, "s"), ListenConfig{})
	require.NoError(t, err)
	defer l.Close()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		info, err := os.Stat(d)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o700), info.Mode().Perm())
	}
}

func TestSocketHasExactlyItsMode(t *testing.T) {
	old := unix.Umask(0o027)
	defer unix.Umask(old)
	for _, c := range []struct{ mode, want fs.FileMode }{{0, 0o600}, {0o660, 0o660}, {0o666, 0o666}} {
		l := listener(t, ListenConfig{Mode: c.mode})
		info, err := os.Lstat(l.Path())
		require.NoError(t, err)
		require.Equal(t, fs.ModeSocket|c.want, info.Mode())
		info, err = os.Lstat(l.Path() + ".lock")
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o600), info.Mode())
	}
}

func TestDirectoryThatOthersCanWriteToIsRefused(t *testing.T) {
	for _, mode := range []fs.FileMode{0o777, 0o702, 0o720, 0o777 | fs.ModeSticky} {
		dir := t.TempDir()
		require.NoError(t, os.Chmod(dir, mode))
		_, err := Listen(dir+"/s", ListenConfig{})
		require.ErrorIs(t, err, ErrUnsafeDir)
		entries, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, entries)
	}
}

func TestDirectoryOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a directory away")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chown(dir, 4242, 4242))
	_, err := Listen(dir+"/s", ListenConfig{})
	require.ErrorIs(t, err, ErrUnsafeDir)
}

func TestFileInPlaceOfADirectory(t *testing.T) {
	path := t.TempDir() + "/file"
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	_, err := Listen(path+"/s", ListenConfig{})
	require.ErrorIs(t, err, unix.ENOTDIR)
}

func TestLiveServiceIsNotTakenOver(t *testing.T) {
	l := listener(t, ListenConfig{})
	_, err := Listen(l.Path(), ListenConfig{})
	require.ErrorIs(t, err, ErrInUse)
	dial(t, l)
}

func TestLiveServiceWithoutALockIsNotTakenOver(t *testing.T) {
	for _, network := range []string{"unixpacket", "unix"} {
		path := t.TempDir() + "/s"
		l, err := net.Listen(network, path)
		require.NoError(t, err)
		_, err = Listen(path, ListenConfig{})
		require.ErrorIs(t, err, ErrInUse, network)
		require.NoError(t, l.Close())
	}
}

// deadSocket returns the path of a socket file that its service left behind.
func deadSocket(t *testing.T) string {
	t.Helper()
	path := t.TempDir() + "/s"
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	return path
}

func TestSocketOfADeadServiceIsTakenOver(t *testing.T) {
	path := deadSocket(t)
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, unix.ECONNREFUSED)

	l, err := Listen(path, ListenConfig{})
	require.NoError(t, err)
	defer l.Close()
	dial(t, l)
}

func TestOtherFilesAreNotTakenOver(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", []byte("keep"), 0o600))
	require.NoError(t, os.Symlink(dir+"/elsewhere", dir+"/link"))
	for _, name := range []string{"/file", "/link"} {
		_, err := Listen(dir+name, ListenConfig{})
		require.ErrorIs(t, err, ErrNotSocket)
		_, err = os.Lstat(dir + name)
		require.NoError(t, err)
	}
}

func TestLockThatIsALinkIsNotFollowed(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Symlink(dir+"/elsewhere", dir+"/s.lock"))
	_, err := Listen(dir+"/s", ListenConfig{})
	require.ErrorIs(t, err, unix.ELOOP)
	require.NoFileExists(t, dir+"/elsewhere")
}

func TestManyServicesAtOncePutOneInPlace(t *testing.T) {
	path := deadSocket(t)
	const n = 16
	found := make([]*Listener, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			l, err := Listen(path, ListenConfig{})
			if err != nil {
				require.ErrorIs(t, err, ErrInUse)
				return
			}
			found[i] = l
		})
	}
	wg.Wait()
	var winner *Listener
	for _, l := range found {
		if l != nil {
			require.Nil(t, winner)
			winner = l
		}
	}
	require.NotNil(t, winner)
	dial(t, winner)
	require.NoError(t, winner.Close())
}

func TestClosedListenerMakesRoom(t *testing.T) {
	l := listener(t, ListenConfig{})
	require.NoError(t, l.Close())
	require.NoError(t, l.Close(), "closing again")
	require.NoFileExists(t, l.Path())
	_, err := Dial(t.Context(), l.Path())
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = l.Accept()
	require.ErrorIs(t, err, os.ErrClosed)

	again, err := Listen(l.Path(), ListenConfig{})
	require.NoError(t, err)
	require.NoError(t, again.Close())
}

func TestCloseWakesAccept(t *testing.T) {
	l := listener(t, ListenConfig{})
	done := make(chan error)
	go func() {
		_, err := l.Accept()
		done <- err
	}()
	require.NoError(t, l.Close())
	require.ErrorIs(t, <-done, os.ErrClosed)
}

func TestPathTooLong(t *testing.T) {
	path := t.TempDir() + "/" + strings.Repeat("s", 108)
	_, err := Listen(path, ListenConfig{})
	require.ErrorIs(t, err, ErrPathTooLong)
	_, err = Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrPathTooLong)
}

func TestPathWithAnAtSignIsAFile(t *testing.T) {
	t.Chdir(t.TempDir())
	l, err := Listen("@s", ListenConfig{})
	require.NoError(t, err)
	defer l.Close()
	info, err := os.Lstat("@s")
	require.NoError(t, err)
	require.Equal(t, fs.ModeSocket, info.Mode().Type())
	dial(t, l)
}

func TestDialWaitsForAFullQueueUntilItsContextIsDone(t *testing.T) {
	l := listener(t, ListenConfig{})
	require.NoError(t, l.raw.Control(func(fd uintptr) { unix.Listen(int(fd), 0) })) // the queue now has room for one connection
	first, err := Dial(t.Context(), l.Path())
	require.NoError(t, err)
	defer first.Close()

	ctx, cancel := context.WithCancel(t.Context())
	retried := make(chan struct{})
	var once sync.Once
	done := make(chan error)
	go func() {
		_, err := dialer{path: l.Path(), retry: func() { once.Do(func() { close(retried) }) }}.dial(ctx)
		done <- err
	}()
	<-retried
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestNoFolderIsMadeInTheFolderOfAnotherUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can give a folder to another user")
	}
	runtime := t.TempDir()
	require.NoError(t, os.Chown(runtime, 1000, 1000))
	for _, path := range []string{"poolbridge/s.sock", "a/b/s.sock"} {
		_, err := Listen(filepath.Join(runtime, path), ListenConfig{})
		require.ErrorIs(t, err, ErrUnsafeDir)
		require.ErrorContains(t, err, "belongs to user 1000")
	}
	made, err := os.ReadDir(runtime)
	require.NoError(t, err)
	require.Empty(t, made)
}
