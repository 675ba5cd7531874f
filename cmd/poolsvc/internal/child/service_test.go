package child

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The first line that the "service" writes is the id of a process that goes on after the service was killed, as a new guard does.
const programWithAGuard = `#!/bin/sh
sh -c 'trap "echo told to end >&2; exit" TERM; while :; do sleep 0.01; done' </dev/null &
echo $! > %q.new; mv %q.new %q; wait
`

func TestAServiceWhoseGuardWasKilledLongAgoEndsWell(t *testing.T) {
	before := endLimit
	endLimit = 20 * time.Millisecond
	defer func() { endLimit = before }()
	program, said := filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "said")
	require.NoError(t, os.WriteFile(program, fmt.Appendf(nil, programWithAGuard, said, said, said), 0o700))
	s, err := Serve(t.Context(), program, "unused")
	require.NoError(t, err)
	var text []byte
	require.Eventually(t, func() bool { text, err = os.ReadFile(said); return err == nil }, 20*time.Second, time.Millisecond)
	guard, err := strconv.Atoi(strings.TrimSpace(string(text)))
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(s.PID(), syscall.SIGKILL))
	s.Guard = guard

	time.Sleep(5 * endLimit)
	require.NoError(t, s.Stop())
	require.Contains(t, s.stderr.String(), "told to end", "Stop waits for the last process")
}
