package seqpacket

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// flightEnv is the name of an environment variable. If the variable is set, the test binary runs no tests, but sends descriptors that
// nobody receives.
const flightEnv = "SEQPACKET_TEST_FLIGHT"

// A descriptor is in flight if a process has sent it and no process has received it. The kernel allows a user at most RLIMIT_NOFILE such
// descriptors, unless the user is privileged.
func TestTooManyDescriptorsInFlight(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), flightEnv+"=1")
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 4242, Gid: 4242}}
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

func flight() int {
	if err := tooMany(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

func tooMany() error {
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		return err
	}
	a, b, err := Pair()
	if err != nil {
		return err
	}
	for range 64 {
		if err = a.TrySend([]byte("x"), []int{0, 0, 0, 0, 0, 0, 0, 0}); err != nil {
			break
		}
	}
	if !errors.Is(err, ErrFDsInFlight) || !errors.Is(err, unix.ETOOMANYREFS) {
		return fmt.Errorf("expected ETOOMANYREFS, found %w", err)
	}
	_, fds, err := b.Recv(make([]byte, 1)) // after this, fewer descriptors are in flight
	if err != nil {
		return err
	}
	fds.Close()
	return a.TrySend([]byte("x"), []int{0})
}
