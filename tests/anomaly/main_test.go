package anomaly

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/poolbridge/poolbridge/cuda"
)

// role is the name of an environment variable. With the value "client", a process of this binary runs beClient; with
// the value "ruin", it runs beRuined. If the variable is not set, the process runs the tests.
const role = "POOLBRIDGE_ANOMALY_ROLE"

// why says why the tests cannot run here; empty: the tests can run.
var why string

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "client":
		os.Exit(beClient(os.Stdin, os.Stdout))
	case "ruin":
		os.Exit(beRuined(os.Stdin, os.Stdout))
	}
	dir, err := os.MkdirTemp("", "poolbridge-anomaly-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	driver.settle(dir)
	why = missing()
	status := m.Run()
	if err := eventually(func() error { return goleak.Find() }); err != nil && status == 0 {
		fmt.Fprintln(os.Stderr, err)
		status = 1
	}
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// missing returns the reason why the tests cannot run here; empty: the tests can run.
func missing() string {
	if err := cuda.Init(); err != nil {
		return "calls are failed in the simulated driver, and there is none: " + err.Error()
	}
	d, err := cuda.DeviceAt(0)
	if err != nil {
		return err.Error()
	}
	name, err := d.Name()
	if err != nil {
		return err.Error()
	}
	if !strings.Contains(strings.ToLower(name), "simulated") {
		return fmt.Sprintf("calls are failed in the simulated driver, and this one is of a %s", name)
	}
	if _, err := os.Stat(filepath.Join(driver.dir, fmt.Sprintf("%d.counts", os.Getpid()))); err != nil {
		return "the simulated driver counts nothing: " + err.Error()
	}
	return ""
}

func needSimulation(t *testing.T) {
	t.Helper()
	if why != "" {
		t.Skip(why)
	}
}
