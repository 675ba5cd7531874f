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

// The "service" starts a process that goes on after the service was killed, as a new guard does. This process writes its id once it can be told
// to end.
const programWithAGuard = `#!/bin/sh
sh -c 'trap "echo told to end >&2; exit" TERM; echo $$ > "$0.new"; mv "$0.new" "$0"; while :; do sleep 0.01; done' %q </dev/null &
wait
`

func TestAServiceWhoseGuardWasKilledLongAgoEndsWell(t *testing.T) {
	before := endLimit
	endLimit = 20 * time.Millisecond
	defer func() { endLimit = before }()
	program, said := filepath.Join(t.TempDir(), "program"), filepath.Join(t.TempDir(), "said")
	require.NoError(t, os.WriteFile(program, fmt.Appendf(nil, programWithAGuard, said), 0o700))
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
