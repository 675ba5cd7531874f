package guard

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Store is the descriptor store of the guard, or of systemd.
type Store struct {
	socket int
}

// answerTime is how long the store may take to take a descriptor.
const answerTime = 5 * time.Second

// Held returns the store of this process, and the descriptors that it has from the processes before; nil: there is no store.
func Held() (*Store, map[string]*os.File, error) {
	if os.Getenv("FDSTORE") == "" || os.Getenv("NOTIFY_SOCKET") == "" {
		return nil, nil, nil
	}
	held := make(map[string]*os.File)
	if who := os.Getenv("LISTEN_PID"); who == fromGuard || who == strconv.Itoa(os.Getpid()) {
		names := strings.Split(os.Getenv("LISTEN_FDNAMES"), ":")
		n, _ := strconv.Atoi(os.Getenv("LISTEN_FDS"))
		for i := range min(n, len(names)) {
			unix.CloseOnExec(3 + i)
			held[names[i]] = os.NewFile(uintptr(3+i), names[i])
		}
		for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
			_ = os.Unsetenv(name)
		}
	}
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.Connect(fd, &unix.SockaddrUnix{Name: os.Getenv("NOTIFY_SOCKET")})
	}
	return &Store{fd}, held, os.NewSyscallError("connect to NOTIFY_SOCKET", err)
}

// Keep gives the store a descriptor. It returns when the store has handled it.
func (s *Store) Keep(name string, f *os.File) error {
	if err := s.send("FDSTORE=1\nFDPOLL=0\nFDNAME="+name, f); err != nil {
		return err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = s.send("BARRIER=1", w)
	if err = errors.Join(err, w.Close()); err != nil {
		return err
	}
	_ = r.SetReadDeadline(time.Now().Add(answerTime))
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("the descriptor store does not answer within %v", answerTime)
	}
	return nil
}

// Drop closes a descriptor of the store.
func (s *Store) Drop(name string) { _ = s.send("FDSTOREREMOVE=1\nFDNAME="+name, nil) } // a store that is gone has nothing

func (s *Store) send(text string, f *os.File) error {
	if f == nil {
		return os.NewSyscallError("send", unix.Sendmsg(s.socket, []byte(text), nil, nil, 0))
	}
	raw, err := f.SyscallConn() // and not f.Fd, which would make the file block
	if err != nil {
		return err
	}
	var sent error
	err = raw.Control(func(fd uintptr) { sent = unix.Sendmsg(s.socket, []byte(text), unix.UnixRights(int(fd)), nil, 0) })
	return errors.Join(err, os.NewSyscallError("send", sent))
}
