//go:build failpoints

package failpoint

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// At takes the first file of the folder $POOLBRIDGE_FAILPOINTS/NAME. If the file's name ends with "kill", At kills this process. Each file is for
// one pass of one process: "1-pass", "2-pass", "3-kill" kill the process that comes third, and its successor goes on.
func At(name string) {
	dir := filepath.Join(os.Getenv("POOLBRIDGE_FAILPOINTS"), name)
	files, _ := os.ReadDir(dir) // without a folder, there are none
	for _, f := range files {
		if os.Remove(filepath.Join(dir, f.Name())) == nil { // no other process has taken it
			if strings.HasSuffix(f.Name(), "kill") {
				_ = unix.Kill(os.Getpid(), unix.SIGKILL)
				select {} // nothing happens after the step
			}
			return
		}
	}
}
