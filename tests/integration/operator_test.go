package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// limited makes this test start its services under a limit of the shell command ulimit.
func limited(t *testing.T, limit string) {
	t.Helper()
	script := filepath.Join(t.TempDir(), "poolsvc")
	text := fmt.Sprintf("#!/bin/sh\nulimit %s && exec '%s' \"$@\"\n", limit, rig.Poolsvc(t))
	require.NoError(t, os.WriteFile(script, []byte(text), 0o700))
	t.Setenv("POOLBRIDGE_TEST_POOLSVC", script)
}

func TestAServiceThatMayHaveFewFilesSaysSoAtItsStart(t *testing.T) {
	limited(t, "-n 64")
	log := rig.Serve(t).Said(t, "LimitNOFILE")
	assert.Contains(t, log, "descriptors=64")
	assert.NotContains(t, rig.Serve(t, "--limit", "sessions=8").Said(t, "msg=serving"), "LimitNOFILE", "that is enough")
}

func TestAServiceWithoutFreeDescriptorsStillAllocatesForItsSessions(t *testing.T) {
	s := rig.Serve(t, "--pool", "name=p,kind=host,max=64MiB")
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	defer c.Close()
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(1))
	require.NoError(t, err)
	free := 0 // the lowest free descriptor of the service; with this number as its limit, it has no free descriptor
	for err == nil {
		if _, err = os.Lstat(fmt.Sprintf("/proc/%d/fd/%d", s.Process.Pid, free)); err == nil {
			free++
		}
	}
	limit := unix.Rlimit{Cur: uint64(free), Max: uint64(free)}
	require.NoError(t, unix.Prlimit(s.Process.Pid, unix.RLIMIT_NOFILE, &limit, nil))
	_, err = pool.TryAllocate(t.Context(), mempool.Bytes(1<<20))
	require.NoError(t, err)
	_, err = c.CreatePool(t.Context(), mempool.PoolSpec{Name: "q", Kind: mempool.Host, MaxBytes: 1 << 20})
	require.ErrorIs(t, err, bridge.ErrLimit)
	require.ErrorContains(t, err, "the service has no free file descriptor: end sessions, or raise the service's limit RLIMIT_NOFILE")
}

func TestAServiceThatMayMakeNoLargeFileNamesTheLimit(t *testing.T) {
	limited(t, "-f 16")
	s := rig.Serve(t)
	c, err := bridge.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	_, err = c.CreatePool(t.Context(), mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: 1 << 20})
	require.ErrorIs(t, err, bridge.ErrLimit)
	assert.ErrorContains(t, err, "LimitFSIZE")
	require.NoError(t, c.Close())
}

// The package poolbridge is in no package registry, so doctor must advise to install it from a checkout.
func TestDoctorSaysHowToInstallThePackageFromACheckout(t *testing.T) {
	python := filepath.Join(t.TempDir(), "python")
	script := fmt.Sprintf("#!/bin/sh\nexec '%s' -I -S \"$@\"\n", rig.Python(t).Path)
	require.NoError(t, os.WriteFile(python, []byte(script), 0o700))
	out, err := exec.Command(rig.Poolsvc(t), "doctor", "--python", python, "--socket", filepath.Join(t.TempDir(), "s")).Output()
	require.Error(t, err)
	assert.Contains(t, string(out), "poolbridge is not installed")
	assert.Contains(t, string(out), "pip install '/path/to/poolbridge[cuda]'")
	assert.NotContains(t, string(out), "pip install poolbridge")
}

func TestDoctorSaysWhetherThePackageHasItsNativeModule(t *testing.T) {
	doctor := func(env ...string) string {
		c := exec.Command(rig.Poolsvc(t), "doctor", "--python", rig.Python(t).Path, "--socket", filepath.Join(t.TempDir(), "s"))
		c.Env = append(os.Environ(), env...)
		out, _ := c.Output() // the exit status depends on this machine
		return string(out)
	}
	said := doctor()
	assert.Contains(t, said, " (native module)")
	assert.NotContains(t, said, "without its native module")
	without := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(without, "poolbridge"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(without, "poolbridge", "__init__.py"), nil, 0o600))
	said = doctor("PYTHONPATH=" + without + string(filepath.ListSeparator) + os.Getenv("PYTHONPATH"))
	assert.Contains(t, said, " (no native module)")
	assert.Contains(t, said, "without its native module: it can use no channels")
	assert.Contains(t, said, "install a C compiler and the headers of Python, and then poolbridge again")
}

// installed is doctor's list of the Python packages, which names CuPy where it is installed.
var installed = regexp.MustCompile(`(?m)^ok +packages .*$`)

func TestDoctorWithoutAGPUNamesOneCauseInOneLine(t *testing.T) {
	for kind, works := range map[string]bool{"": true, "host": true, "device": false, "host,vmm": false} {
		c := exec.Command(rig.Poolsvc(t), "doctor", "--kind="+kind, "--python", rig.Python(t).Path, "--socket", filepath.Join(t.TempDir(), "s"))
		c.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES=")
		out, err := c.Output()
		assert.Equal(t, works, err == nil, "%s", out)
		assert.Equal(t, 1, strings.Count(string(out), "CUDA_VISIBLE_DEVICES is empty"), "%s", out)
		findings := installed.ReplaceAllString(string(out), "")
		for _, rest := range []string{"nvml", "/dev/nvidia", "kind device", "cupy"} {
			assert.NotContains(t, findings, rest)
		}
	}
	out, _ := exec.Command(rig.Poolsvc(t), "doctor", "--python", rig.Python(t).Path).Output()
	assert.NotRegexp(t, `(?m)^ok .* namespace `, string(out), "those that share are in one line")
	if strings.Contains(string(out), "no CUDA driver") { // this machine has no driver
		assert.Equal(t, 1, strings.Count(string(out), "libcuda"), "%s", out)
		assert.NotContains(t, string(out), "pip install", "cuda-core is installed")
	}
}

func TestTheExitStatusOfDoctorSaysWhetherAnythingIsMissing(t *testing.T) {
	doctor := func(env ...string) (missing bool, err error) {
		c := exec.Command(rig.Poolsvc(t), "doctor", "--kind=host,device", "--json", "--socket", filepath.Join(t.TempDir(), "s"))
		c.Env = append(os.Environ(), env...)
		out, err := c.Output()
		var report struct{ Findings []struct{ Status string } }
		require.NoError(t, json.Unmarshal(out, &report))
		for _, f := range report.Findings {
			missing = missing || f.Status == "missing"
		}
		return missing, err
	}
	missing, err := doctor("CUDA_VISIBLE_DEVICES=")
	assert.True(t, missing)
	assert.Error(t, err)
	missing, err = doctor()
	assert.Equal(t, missing, err != nil, "%v", err)
}
