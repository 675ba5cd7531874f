package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func configuration(t *testing.T, text string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "poolsvc.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestAFlagWinsOverTheEnvironmentAndThatOverTheFile(t *testing.T) {
	path := configuration(t, `
log: {level: warn, format: json}
socket: {mode: 0660}
limits: {sessions: 10, waits: 20, channels: 30}
access: {creators: [7, 8]}
pools:
  - {name: a, kind: host, max: 1MiB}
  - {name: b, kind: host, max: 1MiB}
`)
	t.Setenv("POOLBRIDGE_LOG_LEVEL", "error")
	t.Setenv("POOLBRIDGE_LOG_FORMAT", "text")
	t.Setenv("POOLBRIDGE_LIMIT", "waits=21,channels=31")
	t.Setenv("POOLBRIDGE_CREATOR", "9")
	out, err := poolsvc(t, "config", "show", "--config", path, "--log-level", "debug", "--limit", "channels=32", "--pool", "name=b,kind=host,max=2MiB")
	require.NoError(t, err, out)
	var rows []string
	for line := range strings.Lines(out) {
		rows = append(rows, strings.Join(strings.Fields(line), " "))
	}
	for _, want := range []string{
		"log.level debug --log-level",
		"log.format text $POOLBRIDGE_LOG_FORMAT",
		"socket.mode 0660 " + path + ":3",
		"limits.sessions 10 " + path + ":4",
		"limits.waits 21 $POOLBRIDGE_LIMIT",
		"limits.channels 32 --limit",
		"access.creators 9 $POOLBRIDGE_CREATOR",
		"http.pprof false default",
		"pools name=a,kind=host,max=1MiB " + path + ":7",
		"pools name=b,kind=host,max=2MiB --pool",
	} {
		assert.Contains(t, rows, want, out)
	}
}

func TestABrokenConfigurationIsToldByLineAndReason(t *testing.T) {
	path := configuration(t, `socket:
  mode: 999
  pth: x
limits: {sesions: 1, sessions: "5,waits=3"}
log: {level: loud}
http: {pprof: maybe}
pools:
  - {name: p, kind: host, max: lots}
  - {name: q, kind: host, max: 1MiB, session: 2MiB}
  - {name: r, kind: host, max: 1MiB}
  - {name: r, kind: host, max: 1MiB}
  - {name: [s, t], kind: host, max: 1MiB}
  - {name: u, kind: host, max: 1MiB,
     device: 0}
  - {name: v, kind: hots, max: 1MiB, device: 0}
`)
	check := exec.Command(rig.Poolsvc(t), "config", "check", path)
	out, err := check.CombinedOutput()
	require.Error(t, err)
	assert.Equal(t, 1, check.ProcessState.ExitCode())
	serve, err := poolsvc(t, "serve", "--config", path)
	require.Error(t, err)
	for _, want := range []string{`:2: socket.mode: "999" is no file mode`, ":3: socket.pth: there is no such key: did you mean socket.path?",
		`:4: limits.sesions: there is no such key: did you mean limits.sessions?`, `:4: limits.sessions: expected a number, not "5,waits=3"`, `:5: log.level: "loud" is no level`, `:6: http.pprof: expected true or false, not "maybe"`,
		`:8: pool "p": max: "lots" is no size`, `:9: pool "q": session: a session's limit`, `:11: pool "r": two pools have this name, the first at ` + path + ":10",
		":12: pool 5 of the list: name: expected one value, not 2", `:14: pool "u": device: memory of kind "host" is on no device, not on "0"`,
		`:15: pool "v": kind: unknown kind "hots"`} {
		assert.Contains(t, string(out), path+want)
		assert.Contains(t, serve, path+want)
	}
	assert.Equal(t, 12, strings.Count(string(out), "\n"), "a line for each mistake")
	out, err = exec.Command(rig.Poolsvc(t), "serve", "--pool", "name=p,kind=host,max=1MiB,device=0").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), `pool "p": memory of kind "host" is on no device`)
}

func TestEveryMistakeIsToldAtOnceAndNothingThatOnlyFollowsFromOne(t *testing.T) {
	path := configuration(t, `socket:
  path: relative/x
  mode: {a: 1}
  mode: 0660
http:
  address: 0.0.0.0
  pprof: maybe
limits:
  sessions: -1
access:
  creators: [bob, 5, alice]
pools:
  - {name: a, kind: hots, max: 64MB, session: 1MiB, user: 1MiB}
  - name: b
    kind: tape
    max: 1MiB
    user: 2MiB
    session: 3MiB
  - {name: b, kind: host, max: {}, session: 1MiB, colour: red}
  - text
  - {kind: host}
`)
	for _, args := range [][]string{{"config", "check", path}, {"serve", "--config", path}} {
		out, err := poolsvc(t, args...)
		require.Error(t, err)
		out = strings.TrimPrefix(out, "poolsvc: ")
		for _, want := range []string{`:2: socket.path: "relative/x" is no absolute path`, ":3: socket.mode: expected a value",
			":4: socket: mode is given twice, first in line 3", `:6: http.address: "0.0.0.0": expected HOST:PORT`, ":7: http.pprof: expected true or false",
			":9: limits.sessions: the limit sessions must be 1 or more", `:11: access.creators: "bob" is no user`, `:11: access.creators: "alice" is no user`,
			`:13: pool "a": max: "64MB" is no size`, `:13: pool "a": kind: unknown kind "hots"`, `:15: pool "b": kind: unknown kind "tape"`,
			`:17: pool "b": user: a user's limit`, `:18: pool "b": session: a session's limit`, `:19: pool "b": max: expected a value`,
			`:19: pool "b": colour: there is no such key`, `:19: pool "b": two pools have this name, the first at ` + path + ":14",
			":20: pool 4 of the list: expected keys with values", ":21: pool 5 of the list: name: the name of a pool must not be empty",
			":21: pool 5 of the list: max: "} {
			assert.Contains(t, out, path+want)
			out = strings.Replace(out, path+want, "", 1)
		}
		assert.NotContains(t, out, path+":", "nothing else is a mistake")
	}
	for text, want := range map[string]string{
		"http: {pprof: true}":                                    ":1: http.pprof needs http.address (--http), which is missing",
		"http: {allow-remote: true}":                             ":1: http.allow-remote needs http.address (--http), which is missing",
		"http: {address: 0.0.0.0:1, allow-remote: perhaps}":      ":1: http.allow-remote: expected true or false",
		"http: {address: [a, b], pprof: true}":                   ":1: http.address: expected one value, not 2",
		"http: {address: \"127.0.0.1:65536\"}":                   `:1: http.address: "127.0.0.1:65536": expected a port`,
		"http: {address: unix:http.sock}":                        `:1: http.address: "unix:http.sock" is no absolute path`,
		"pools: [{name: a, kind: host, max: 1MiB, uid: [x, y]}]": `:1: pool "a": uid: "y" is no user or group id`,
	} {
		path := configuration(t, text)
		out, err := poolsvc(t, "config", "check", path)
		require.Error(t, err, text)
		assert.Contains(t, out, path+want)
	}
}

func TestWhatAFlagSaysRightIsNotWrongBecauseTheFileSaidItWrong(t *testing.T) {
	path := configuration(t, "http: {address: 0.0.0.0}\nsocket: {path: relative}\n")
	out, err := poolsvc(t, "config", "show", "--config", path, "--http", "127.0.0.1:0", "--socket", "here")
	require.NoError(t, err, out)
	t.Setenv("POOLBRIDGE_MODE", "9")
	out, err = poolsvc(t, "config", "show", "--config", path, "--socket", "here")
	require.Error(t, err)
	assert.Contains(t, out, `$POOLBRIDGE_MODE: "9" is no file mode`)
	assert.Contains(t, out, path+":1: http.address: ")
	assert.NotContains(t, out, "socket.path")
}

func TestAConfigurationThatIsRightIsSaidToBe(t *testing.T) {
	out, err := poolsvc(t, "config", "check", configuration(t, "http: {pprof: false}\npools:\n  - {name: p, kind: host, max: 1MiB, uid: [], gid: [1, 2]}\n"))
	require.NoError(t, err)
	assert.Contains(t, out, "nothing is wrong; pools: 1")
	check := exec.Command(rig.Poolsvc(t), "config", "check")
	require.Error(t, check.Run())
	assert.Equal(t, 2, check.ProcessState.ExitCode(), "no file is named")
}

func TestAConfigurationThatOthersCanWriteIsRefused(t *testing.T) {
	path := configuration(t, "")
	require.NoError(t, os.Chmod(path, 0o666))
	for _, args := range [][]string{{"config", "check", path}, {"serve", "--config", path}} {
		out, err := poolsvc(t, args...)
		require.Error(t, err)
		assert.Contains(t, out, "users other than its owner may change it")
		assert.Contains(t, out, "chmod go-w")
	}
}

func TestAnAddressThatIsInUseOrOpenToOthersIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	out, err := poolsvc(t, "serve", "--private", "--http", l.Addr().String())
	require.Error(t, err)
	assert.Contains(t, out, "address already in use")
	path := configuration(t, "\nhttp: {address: 0.0.0.0:0}\n")
	out, err = poolsvc(t, "config", "check", path)
	require.Error(t, err)
	assert.Contains(t, out, path+":2: ")
	assert.Contains(t, out, "http.allow-remote")
}

func TestAHangupReloadsWhatItCanAndNamesTheRest(t *testing.T) {
	before := "log: {level: info}\nlimits: {sessions: 50}\npools:\n  - {name: a, kind: host, max: 1MiB}\n  - {name: b, kind: host, max: 1MiB}\n"
	path := configuration(t, before)
	s := rig.Serve(t, "--config", path)
	said := func(what string) {
		t.Helper()
		s.Said(t, what)
	}
	reload := func(text string) {
		t.Helper()
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	}
	reload("log: {level: loud}\n")
	said(path + `:1: log.level: \"loud\" is no level`)
	assert.Len(t, s.Stats(t).Pools, 2, "everything stays as it was")

	// Package rig starts the service with --verbose, which overrides the log level in the file.
	reload(`
socket: {mode: 0666}
log: {format: json}
limits: {sessions: 20, user-pools: 3}
access: {creators: [4242]}
pools:
  - {name: a, kind: host, max: 2MiB}
  - {name: c, kind: host, max: 1MiB}
  - {name: d, kind: host, max: 900TiB}
`)
	said("the configuration was reloaded")
	log := s.Log()
	for _, want := range []string{`limits="sessions=20,user-pools=3"`, "access.creators=[4242]", "setting=socket.mode now=0600 configured=0666", "setting=log.format",
		`made a pool" name=c`, "cannot change", "now=\"name=a,kind=host,max=1MiB\"", "not in the configuration any more", "could not be made\" name=d"} {
		assert.Contains(t, log, want)
	}
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	defer c.Close()
	pool, err := c.TryOpenPool(t.Context(), "c")
	require.NoError(t, err)
	assert.EqualValues(t, 1<<20, pool.Info().MaxBytes)
	_, err = c.CreatePool(t.Context(), mempool.PoolSpec{Name: "e", Kind: mempool.Host, MaxBytes: 1 << 20})
	require.ErrorIs(t, err, bridge.ErrLimit, "this user has made three pools")
}

func TestAServiceThatTakesOverKeepsItsSettingsWhileTheConfigurationIsBroken(t *testing.T) {
	const p = "limits: {user-pools: 2}\npools:\n  - {name: p, kind: host, max: 16MiB}\n"
	for how, harm := range map[string]func(path string) error{
		"mistake":       func(path string) error { return os.WriteFile(path, []byte("pools:\n  - nme: p\n"), 0o600) },
		"gone":          os.Remove,
		"others' write": func(path string) error { return os.Chmod(path, 0o666) },
	} {
		t.Run(how, func(t *testing.T) {
			path := configuration(t, p)
			s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", path)
			c := dial(t, s)
			pool, err := c.TryOpenPool(t.Context(), "p")
			require.NoError(t, err)
			l := filled(t, pool, 4096, 7)
			require.NoError(t, harm(path))
			for range 2 {
				killService(t, s.Process.Pid)
				_, err = c.Stats(t.Context())
				require.NoError(t, err)
				has(t, l, 4096, 7)
			}
			s.Said(t, "poolsvc config check "+path)
			guard := anotherGuard(t, s)
			require.NoError(t, os.RemoveAll(path))
			require.NoError(t, os.WriteFile(path, []byte(p+"  - {name: q, kind: host, max: 1MiB}\n"), 0o600))
			require.NoError(t, syscall.Kill(guard, syscall.SIGHUP))
			s.Said(t, `has a pool" name=q`)
			_, err = c.CreatePool(t.Context(), mempool.PoolSpec{Name: "r", Kind: mempool.Host, MaxBytes: 1 << 20})
			require.ErrorIs(t, err, bridge.ErrLimit, "this user has made two pools")
			has(t, l, 4096, 7)
			ended(t, s, guard)
		})
	}
}

func TestAServiceThatTakesOverReadsAConfigurationThatChanged(t *testing.T) {
	path := configuration(t, "pools:\n  - {name: p, kind: host, max: 1MiB}\n")
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", path)
	c := dial(t, s)
	require.NoError(t, os.WriteFile(path, []byte("access: {creators: [4242]}\npools:\n  - {name: q, kind: host, max: 1MiB}\n"), 0o600))
	killService(t, s.Process.Pid)
	s.Said(t, "the configuration was reloaded")
	assert.Contains(t, s.Log(), "access.creators=[4242]")
	for _, name := range []string{"p", "q"} {
		_, err := c.TryOpenPool(t.Context(), name)
		require.NoError(t, err)
	}
}

func TestAPoolThatCouldNotBeMadeIsMadeWhenItCanAlsoByTheNextService(t *testing.T) {
	path := configuration(t, "limits: {user-pools: 1}\npools:\n  - {name: p, kind: host, max: 1MiB}\n")
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", path)
	c := dial(t, s)
	reload := func(most int) {
		text := fmt.Sprintf("limits: {user-pools: %d}\npools:\n  - {name: p, kind: host, max: 1MiB}\n  - {name: q, kind: host, max: 1MiB}\n", most)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, s.Process.Signal(syscall.SIGHUP))
	}
	reload(1)
	s.Said(t, `could not be made" name=q`)
	killService(t, s.Process.Pid)
	_, err := c.Stats(t.Context())
	require.NoError(t, err)
	reload(2)
	s.Said(t, `has a pool" name=q`)
}

func TestAHangupEndsNoServiceThatBegins(t *testing.T) {
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", configuration(t, "limits: {user-pools: 1}\n"))
	c := dial(t, s)
	const kills = 10
	for range kills {
		killService(t, s.Process.Pid)
		for range 20 {
			require.NoError(t, s.Process.Signal(syscall.SIGHUP))
			time.Sleep(time.Millisecond) // the next service is at another step of its start
		}
		_, err := c.Stats(t.Context())
		require.NoError(t, err)
	}
	assert.EqualValues(t, kills, s.Stats(t).Takeovers)
}

func TestADestroyedPoolOfTheConfigurationStaysAwayWhenTheServiceDies(t *testing.T) {
	path := configuration(t, "pools:\n  - {name: p, kind: host, max: 1MiB}\n")
	s := rig.Serve(t, "--guard", "--guard-quick", "0s", "--config", path, "--pool", "name=q,kind=host,max=1MiB", "--pool", "name=r,kind=host,max=1MiB")
	c := dial(t, s)
	require.NoError(t, c.DestroyPool(t.Context(), "p"))
	require.NoError(t, c.DestroyPool(t.Context(), "q"))
	for range 2 {
		killService(t, s.Process.Pid)
		for _, name := range []string{"p", "q"} {
			_, err := c.TryOpenPool(t.Context(), name)
			require.ErrorIs(t, err, bridge.ErrNotFound, name)
		}
		_, err := c.TryOpenPool(t.Context(), "r")
		require.NoError(t, err)
	}
}

func TestTheLogIsJSONOnRequestAndSaysWhatItsLevelAsksFor(t *testing.T) {
	for _, c := range []struct {
		level string
		lines bool
	}{{"info", true}, {"error", false}} {
		cmd := exec.Command(rig.Poolsvc(t), "serve", "--private", "--end-unused", "1ms", "--log-format", "json", "--log-level", c.level)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		require.NoError(t, cmd.Run())
		assert.Equal(t, c.lines, strings.Contains(stderr.String(), `"msg":"serving"`))
		for lines := bufio.NewScanner(strings.NewReader(stderr.String())); lines.Scan(); {
			var line map[string]any
			require.NoError(t, json.Unmarshal(lines.Bytes(), &line), lines.Text())
			if line["msg"] == "serving" {
				assert.Regexp(t, "^[0-9a-f]{32}$", line["epoch"], "as poolsvc status has it")
			}
		}
	}
	out, err := poolsvc(t, "serve", "--verbose", "--log-level", "warn")
	require.Error(t, err)
	assert.Contains(t, out, "--verbose and --log-level exclude each other")
}
