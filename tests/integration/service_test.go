package integration

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestASecondServiceOnALiveSocketIsRefused(t *testing.T) {
	s := rig.Serve(t)
	out, err := exec.Command(rig.Poolsvc(t), "serve", "--socket", s.Socket).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), "live service")
	assert.Len(t, s.Stats(t).Pools, 0, "the first one goes on")
}

func TestTheSocketOfAKilledServiceIsTakenOver(t *testing.T) {
	s := rig.Serve(t)
	s.Kill(t)
	again := rig.ServeAt(t, s.Socket, "--pool", "name=p,kind=host,max=1MiB")
	assert.Len(t, again.Stats(t).Pools, 1)
}

func TestPoolsShowsWhatAUserMayHave(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=bounded,kind=host,max=1MiB,user=64KiB")
	out, err := exec.Command(rig.Poolsvc(t), "pools", "--socket", s.Socket).CombinedOutput()
	require.NoError(t, err, string(out))
	assert.Contains(t, string(out), "0B of 64KiB")
}

func TestTheCommandLineListsWhatAServiceHas(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB")
	w := rig.Python(t).Start(t, `
import sys, poolbridge
with poolbridge.connect(sys.argv[1]) as client:
    client.open_pool("p")
    lease = client.allocate((2, 3), "float32")
    lease.publish("weights")
    client.create_channel("camera", capacity=4)
    print("ready", flush=True)
    sys.stdin.readline()
`, s.Socket)
	require.Equal(t, "ready", w.Line(t))
	list := func(what string, more ...string) string {
		out, err := exec.Command(rig.Poolsvc(t), append([]string{what, "--socket", s.Socket}, more...)...).CombinedOutput()
		require.NoError(t, err, string(out))
		return string(out)
	}
	assert.Regexp(t, `weights +p +1 +\d+ +float32 +\[2 3\] +24B`, list("names"))
	assert.Regexp(t, `\d+ +p +weights v1 +float32 +\[2 3\] +24B`, list("buffers"))
	assert.Regexp(t, `camera +\d+ +p +broadcast +4 +block +0 +0 +0 +0 +0 +0 +- +open`, list("channels"))
	assert.NotContains(t, list("sessions"), "poolsvc", "neither the command nor the service is a program that somebody started to use it")
	var names struct {
		Names []struct {
			Name  string
			Shape []int
		}
	}
	require.NoError(t, json.Unmarshal([]byte(list("names", "--json")), &names))
	require.Len(t, names.Names, 1)
	assert.Equal(t, "weights", names.Names[0].Name)
	assert.Equal(t, []int{2, 3}, names.Names[0].Shape)
	w.End(t)
}

func TestNoListPrintsUnprintableCharactersOfNames(t *testing.T) {
	const name, program = "a\u202eb\u2028c", "d\u202ee\u2028f\u009bg\u007fh" // names have no control characters
	s := rig.Serve(t)
	own := os.Args[0]
	os.Args[0] = program
	c, err := bridge.Dial(t.Context(), s.Socket)
	os.Args[0] = own
	require.NoError(t, err)
	defer c.Close()
	pool, err := c.CreatePool(t.Context(), mempool.PoolSpec{Name: name, Kind: mempool.Host, MaxBytes: 1 << 20})
	require.NoError(t, err)
	l, err := pool.TryAllocate(t.Context(), mempool.Bytes(1<<20)) // which fills the pool, so that status warns of it
	require.NoError(t, err)
	require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: name}))
	_, err = c.CreateChannel(t.Context(), mempool.ChannelSpec{Name: name, Pool: pool.Info().ID})
	require.NoError(t, err)
	_, err = c.Subscribe(t.Context(), name, mempool.SubscribeOptions{})
	require.NoError(t, err)
	const escaped = `a\u202eb\u2028c`
	names := []string{"a?b?c", escaped}
	lists := map[string][]string{"pools": names, "names": names, "buffers": names, "leases": names, "channels": names, "status": names,
		"events": {escaped, escaped}, "sessions": {"d?e?f?g?h", `d\u202ee\u2028f\u009bg\u007fh`}}
	if !testing.Short() {
		lists["channel show "+name] = names // which looks for a second
	}
	for list, shown := range lists {
		for i, as := range []string{"", " --json"} {
			out, err := poolsvc(t, strings.Split(list+" --socket "+s.Socket+as, " ")...)
			require.NoError(t, err, out)
			assert.Contains(t, out, shown[i], list)
			for _, r := range out {
				assert.True(t, r == '\n' || unicode.IsPrint(r), "%s%s: %U", list, as, r)
			}
		}
	}
}

func TestAClientWithoutAServiceIsToldWhereItLookedAndHowToStartOne(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nobody.sock")
	out, err := exec.Command(rig.Poolsvc(t), "pools", "--socket", socket).CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), socket)
	assert.Contains(t, string(out), "poolsvc serve")

	said := rig.Python(t).Start(t, `
import sys, poolbridge
try:
    poolbridge.connect(sys.argv[1])
except poolbridge.ServiceNotRunningError as error:
    print(str(error).replace("\n", " "))
`, socket).End(t)
	assert.Contains(t, said, socket)
	assert.Contains(t, said, "poolsvc serve")
}

func TestAServiceThatIsRefusedItsSocketSaysNeitherThatItServesNorThatItMadeAPool(t *testing.T) {
	s := rig.Serve(t)
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer taken.Close()
	for _, address := range []string{"127.0.0.1:0", taken.Addr().String()} { // as two copies of one command line have
		out, err := exec.Command(rig.Poolsvc(t), "serve", "--socket", s.Socket, "--http", address, "--pool", "name=p,kind=host,max=1MiB").CombinedOutput()
		var failed *exec.ExitError
		require.ErrorAs(t, err, &failed)
		assert.Equal(t, 3, failed.ExitCode())
		assert.Contains(t, string(out), "a live service uses the socket")
		assert.NotContains(t, string(out), "serving")
		assert.NotContains(t, string(out), "made a pool")
	}
}

func TestPoolsThatTheCommandLineCannotMakeAreExplained(t *testing.T) {
	for spec, want := range map[string]string{
		"name=p,kind=host":                 "max is missing: write, for example, name=frames,kind=host,max=1GiB",
		"kind=host,max=1":                  "name is missing",
		"name=p,kind=host,max=0":           "must lie between 1 and",
		"name=p,kind=tape,max=1":           "(known: device, vmm, legacy, pinned, host)",
		"name=,kind=host,max=1":            "must not be empty",
		"name=p,kind=host,max=10":          "could never hold a buffer",
		"name=p,kind=host,max=lots":        "is no size",
		"name=p,kind=host,max=900TiB":      "can ever be available",
		"name=p,kind=host,max=1,size=2":    "unknown key",
		"frames:kind=host":                 "uid, gid, as in name=frames,kind=host,max=1GiB",
		"name=p,kind=host,device=0,max=1":  "on no device",
		"name=p,kind=host,max=1,session=2": "more than the pool's",
	} {
		out, err := exec.Command(rig.Poolsvc(t), "serve", "--socket", filepath.Join(t.TempDir(), "s"), "--pool", spec).CombinedOutput()
		require.Error(t, err, spec)
		assert.Contains(t, string(out), want, spec)
	}
}

func TestALimitOfTheServiceIsNamedInTheErrorOfWhoMeetsIt(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=1MiB", "--limit", "session-leases=2")
	said := rig.Python(t).Start(t, `
import sys, poolbridge
with poolbridge.connect(sys.argv[1]) as client:
    client.open_pool("p")
    leases = [client.allocate(4, "uint8") for _ in range(2)]
    try:
        client.allocate(4, "uint8")
    except poolbridge.PoolLimitError as error:
        print(str(error).replace("\n", " "))
    leases.pop().release()
    client.allocate(4, "uint8").release()
    leases.pop().release()
`, s.Socket).End(t)
	assert.Contains(t, said, "has 2 leases, and the limit session-leases is 2: release some")
}

func TestALimitThatThereIsNotIsAnsweredWithThoseThatThereAre(t *testing.T) {
	for limit, want := range map[string]string{
		"lease=2":         "expected one of sessions, waits, session-leases",
		"leases":          `not ""`,
		"buffers=0":       "1 or more",
		"sessions=plenty": "1 or more",
	} {
		out, err := exec.Command(rig.Poolsvc(t), "serve", "--socket", filepath.Join(t.TempDir(), "s"), "--limit", limit).CombinedOutput()
		require.Error(t, err, limit)
		assert.Contains(t, string(out), want, limit)
	}
}

func TestACommandLineThatIsNotUnderstoodNamesTheHelpAndFailsWithTwo(t *testing.T) {
	for _, one := range []struct {
		args []string
		help string
	}{
		{[]string{"nonsense"}, "poolsvc --help"},
		{[]string{"--nonsense"}, "poolsvc --help"},
		{[]string{"serve", "--nonsense"}, "poolsvc serve --help"},
		{[]string{"pools", "x"}, "poolsvc pools --help"},
		{[]string{"export"}, "poolsvc export --help"},
	} {
		out, err := exec.Command(rig.Poolsvc(t), one.args...).CombinedOutput()
		failed, ok := errors.AsType[*exec.ExitError](err)
		require.True(t, ok, "%v", err)
		assert.Equal(t, 2, failed.ExitCode(), "%q", one.args)
		assert.Contains(t, string(out), "see "+one.help, "%q", one.args)
	}
	out, err := exec.Command(rig.Poolsvc(t), "nonsense").CombinedOutput()
	require.Error(t, err)
	assert.Contains(t, string(out), `no command "nonsense"`)
}
