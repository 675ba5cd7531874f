package integration

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

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

func TestPoolsThatTheCommandLineCannotMakeAreExplained(t *testing.T) {
	for spec, want := range map[string]string{
		"name=p,kind=host":                 "most bytes",
		"name=p,kind=tape,max=1":           "unknown kind",
		"name=,kind=host,max=1":            "must not be empty",
		"name=p,kind=host,max=lots":        "is no size",
		"name=p,kind=host,max=1,size=2":    "unknown key",
		"name=p,kind=host,device=0,max=1":  "on no device",
		"name=p,kind=host,max=1,session=2": "more than the pool's",
	} {
		out, err := exec.Command(rig.Poolsvc(t), "serve", "--socket", filepath.Join(t.TempDir(), "s"), "--pool", spec).CombinedOutput()
		require.Error(t, err, spec)
		assert.Contains(t, string(out), want, spec)
	}
}
