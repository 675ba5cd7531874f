package seqpacket

import (
	"os"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// echoEnv is the name of an environment variable. If the variable is set, the test binary sends back each packet of descriptor 3; if it is
// "spinning", the binary spins until a packet comes.
const echoEnv = "SEQPACKET_TEST_ECHO"

// BenchmarkAPacketAndItsAnswer shows what a request to another process takes at least: two system calls on each side, and two processes
// that sleep and wake, or that spin.
func BenchmarkAPacketAndItsAnswer(b *testing.B) {
	for _, how := range []string{"asleep", "spinning"} {
		b.Run(how, func(b *testing.B) {
			fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
			require.NoError(b, err)
			theirs := os.NewFile(uintptr(fds[1]), "echo")
			echo := exec.Command(os.Args[0])
			echo.Env = append(os.Environ(), echoEnv+"="+how)
			echo.ExtraFiles = []*os.File{theirs}
			require.NoError(b, echo.Start())
			require.NoError(b, theirs.Close())
			packet := make([]byte, 128)
			for b.Loop() {
				if _, err := unix.Write(fds[0], packet); err != nil {
					b.Fatal(err)
				}
				if _, err := receive(fds[0], packet, how); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, unix.Close(fds[0]))
			require.NoError(b, echo.Wait())
		})
	}
}

// receive receives a packet, asleep or spinning.
func receive(fd int, packet []byte, how string) (n int, err error) {
	flags := 0
	if how == "spinning" {
		flags = unix.MSG_DONTWAIT
	}
	for {
		if n, _, err = unix.Recvfrom(fd, packet, flags); err != unix.EAGAIN {
			return n, err
		}
	}
}

// answer sends back each packet of descriptor 3, until the other end is closed.
func answer(how string) int {
	packet := make([]byte, 128)
	for {
		n, err := receive(3, packet, how)
		if err != nil || n == 0 {
			return 0
		}
		if _, err := unix.Write(3, packet[:n]); err != nil {
			return 1
		}
	}
}
