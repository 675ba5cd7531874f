package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
)

// life is what programs that start a service for themselves say about its beginning and its end.
type life struct {
	ready, end int // descriptors; below 0: none
	unused     time.Duration
	private    bool
	logBytes   byteSize // 0: no bound
}

// socketError says that the service cannot listen where it is to.
type socketError struct{ err error }

func (e *socketError) Error() string { return e.err.Error() }
func (e *socketError) Unwrap() error { return e.err }

func (l *life) flags(c *cobra.Command) {
	f := c.Flags()
	f.IntVar(&l.ready, "ready-fd", -1, "descriptor to write a line to, the socket's path, once clients can connect; then it is closed")
	f.IntVar(&l.end, "end-fd", -1, "end when this descriptor can be read from or has no other end: a pipe, or a pidfd of the program to end with")
	f.DurationVar(&l.unused, "end-unused", 0, "end when no client was connected for so long, from the start on as well; 0: do not")
	f.Var(&l.logBytes, "log-bytes", "keep the file that standard error goes to within so many bytes; to drop its older half, it is "+
		"emptied and written anew, so a reader may find it empty for a moment; 0: no bound")
	c.PreRunE = l.bound
	f.BoolVar(&l.private, "private", false, "listen in a new folder below $TMPDIR or /tmp, which is removed at the end, instead of at --socket")
}

// check makes sure of the descriptors, and keeps them to this program.
func (l *life) check(c *cobra.Command) error {
	for flag, fd := range map[string]int{"ready-fd": l.ready, "end-fd": l.end} {
		if !c.Flags().Changed(flag) {
			continue
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return misused(c, "--%s %d is no open descriptor: %v", flag, fd, err)
		}
	}
	if l.private && c.Flags().Changed("socket") {
		return misused(c, "either --private or --socket")
	}
	return nil
}

// live says that the service is ready, and calls end when it is to end.
func (l *life) live(end func(), server *bridge.Server, socket string, log *slog.Logger) {
	if l.ready >= 0 {
		file := os.NewFile(uintptr(l.ready), "ready-fd")
		_, err := fmt.Fprintln(file, socket)
		if cerr := file.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			log.Warn("nobody hears that the service is ready", "error", err)
		}
	}
	go func() {
		<-server.Unused()
		log.Info("nobody is connected any more")
		end()
	}()
	if l.end >= 0 {
		go func() {
			if err := awaitReadable(l.end); err != nil {
				log.Error("the end of the program that started the service cannot be waited for: it ends now", "error", err)
			} else {
				log.Info("the program that started the service has ended, or wants it to end")
			}
			end()
		}()
	}
}

func awaitReadable(fd int) error {
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, -1)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n > 0 {
			return os.NewSyscallError("poll", err)
		}
	}
}

// privateSocket makes a folder for a socket, and gives the socket's path.
func privateSocket() (string, error) {
	const name = "poolsvc.sock"
	base := os.TempDir()
	if len(filepath.Join(base, "poolbridge-0123456789", name+".lock")) >= len(unix.RawSockaddrUnix{}.Path) {
		base = "/tmp" // the path would be too long for a socket
	}
	dir, err := os.MkdirTemp(base, "poolbridge-")
	return filepath.Join(dir, name), err
}
