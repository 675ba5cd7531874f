package check

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

// units copies the units of deploy/systemd into a folder, and replaces their programs by programs that exist on this machine.
func units(t *testing.T) (paths []string) {
	t.Helper()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		t.Skip("systemd-analyze of systemd is not installed")
	}
	found, err := filepath.Glob("../systemd/poolsvc*.s[eo][rc]*") // services and sockets
	require.NoError(t, err)
	require.Len(t, found, 3)
	dir := t.TempDir()
	for _, path := range found {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		here := strings.NewReplacer("/usr/bin/poolsvc", rig.Poolsvc(t), "/usr/bin/nvidia-modprobe", "/bin/true", "/usr/bin/nvidia-smi", "/bin/true")
		to := filepath.Join(dir, filepath.Base(path))
		require.NoError(t, os.WriteFile(to, []byte(here.Replace(string(text))), 0o644))
		paths = append(paths, to)
	}
	return paths
}

func TestSystemdUnderstandsTheUnits(t *testing.T) {
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, units(t)...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.NotContains(t, string(out), "poolsvc", "a warning")
}

func TestSystemdUnderstandsTheDropInForReloads(t *testing.T) {
	paths := units(t)
	folder := filepath.Join(filepath.Dir(paths[0]), "poolsvc.service.d")
	require.NoError(t, os.Mkdir(folder, 0o755))
	text, err := os.ReadFile("../systemd/notify-reload.conf")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "notify-reload.conf"), text, 0o644))
	out, err := exec.Command("systemd-analyze", append([]string{"verify", "--man=no"}, paths...)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	said, err := exec.Command("systemd-analyze", "--version").Output()
	require.NoError(t, err)
	var version int
	_, err = fmt.Sscanf(string(said), "systemd %d", &version)
	require.NoError(t, err)
	complaints := strings.Count(string(out), "notify-reload.conf")
	if version < 253 {
		assert.Contains(t, string(out), "Failed to parse service type, ignoring: notify-reload")
		complaints--
	}
	assert.Zero(t, complaints, "%s", out)
	for _, line := range []string{"Type=notify-reload", "ExecReload="} { // else systemd and ExecReload= of the unit would both send SIGHUP
		assert.Contains(t, strings.Split(string(text), "\n"), line)
	}
}

func TestTheUnitExposesLittle(t *testing.T) {
	for _, path := range units(t) {
		if filepath.Base(path) == "poolsvc.service" {
			out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=30", path).CombinedOutput()
			assert.NoError(t, err, "%s", out)
		}
	}
}
