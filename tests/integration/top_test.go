package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// terminal is a terminal with 80 columns and 24 rows, in which a command runs.
type terminal struct {
	t      testing.TB
	socket string
}

func openTerminal(t testing.TB, env string, command ...string) *terminal {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("tmux, which these tests have a terminal of, is not installed: apt-get install tmux")
	}
	term := &terminal{t, filepath.Join(t.TempDir(), "tmux")}
	args := append([]string{"-f", "/dev/null", "new-session", "-d", "-x", "80", "-y", "24", "env", env}, command...)
	term.tmux(args...)
	t.Cleanup(func() { _ = exec.Command("tmux", "-S", term.socket, "kill-server").Run() }) // fails if tmux has ended
	return term
}

func (term *terminal) tmux(args ...string) string {
	term.t.Helper()
	out, err := exec.Command("tmux", append([]string{"-S", term.socket}, args...)...).CombinedOutput()
	require.NoError(term.t, err, string(out))
	return string(out)
}

func (term *terminal) press(keys ...string) { term.tmux(append([]string{"send-keys"}, keys...)...) }

// shows waits until the screen shows a text, and returns the screen.
func (term *terminal) shows(text string) (screen string) {
	term.t.Helper()
	return term.matches(regexp.QuoteMeta(text))
}

// matches waits until the screen matches a regular expression, and returns the screen. tmux shows also what is only half drawn.
func (term *terminal) matches(text string) (screen string) {
	term.t.Helper()
	want := regexp.MustCompile(text)
	require.Eventually(term.t, func() bool {
		screen = term.tmux("capture-pane", "-p")
		return want.MatchString(screen)
	}, time.Minute, 50*time.Millisecond, "%q", text)
	return screen
}

func TestTopShowsInATerminalWhoHoldsMostAndWhoDied(t *testing.T) {
	s := rig.Serve(t)
	holder, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	pool, err := holder.CreatePool(t.Context(), mempool.PoolSpec{Name: "frames", Kind: mempool.Host, MaxBytes: 64 << 20})
	require.NoError(t, err)
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(12<<20))
	require.NoError(t, err)
	term := openTerminal(t, "TERM=xterm-256color", rig.Poolsvc(t), "top", "--socket", s.Socket, "--interval", "100ms")
	screen := term.matches(`(?s)frames.*SESSION[^\n]*\n[^\n]*12MiB[^\n]*100%`) // the session that holds most comes first
	for _, line := range strings.Split(screen, "\n") {
		assert.LessOrEqual(t, len([]rune(line)), 80)
	}
	term.press("Enter")
	term.shows("written")
	term.press("Tab")
	term.shows("CHANNEL")
	_, err = holder.CreateChannel(t.Context(), mempool.ChannelSpec{Name: "camera", Pool: pool.Info().ID, Mode: mempool.WorkQueue})
	require.NoError(t, err)
	_, err = holder.Subscribe(t.Context(), "camera", mempool.SubscribeOptions{})
	require.NoError(t, err)
	term.press("/", strconv.Itoa(os.Getpid()))
	term.shows("filter: " + strconv.Itoa(os.Getpid()))
	term.shows("camera   frames") // the channel of this session
	term.press("Escape")
	require.NoError(t, holder.Close())
	term.shows("ended after")
	term.press("?")
	term.shows("RESERVED is taken from the machine or the GPU")
	term.press("q")
	require.Eventually(t, func() bool {
		return exec.Command("tmux", "-S", term.socket, "has-session").Run() != nil
	}, time.Minute, 50*time.Millisecond, "q ends it")
}

func TestTopWorksWithoutColours(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=frames,kind=host,max=1MiB")
	term := openTerminal(t, "NO_COLOR=1", rig.Poolsvc(t), "top", "--socket", s.Socket, "--interval", "100ms")
	term.shows("frames")
	styled := term.tmux("capture-pane", "-p", "-e")
	assert.NotRegexp(t, `\x1b\[[0-9;]*(3[1-7]|38|9[0-7])m`, styled)
}

func TestTopWithoutATerminalNamesTheOtherCommands(t *testing.T) {
	out, err := exec.Command(rig.Poolsvc(t), "top").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "needs a terminal")
	assert.Contains(t, string(out), "--json")
}
