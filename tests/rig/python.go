package rig

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// Interpreter is a Python interpreter that has the poolbridge package.
type Interpreter struct {
	Path string

	first string               // the beginning of every script
	where *syscall.SysProcAttr // attributes of the processes that run scripts; nil: the attributes of the test
}

// Python returns the interpreter that the tests use.
func Python(t testing.TB) *Interpreter {
	t.Helper()
	path := os.Getenv("POOLBRIDGE_TEST_PYTHON")
	if path == "" {
		path = filepath.Join(Root(), ".venv", "bin", "python")
	}
	out, err := exec.Command(path, "-c", "import poolbridge").CombinedOutput()
	require.NoError(t, err, "%s has no poolbridge package: run `make venv`, or set POOLBRIDGE_TEST_PYTHON\n%s", path, out)
	return &Interpreter{Path: path}
}

// Run runs a program to its end and returns what it printed. If the program fails, the test fails.
func (p *Interpreter) Run(t testing.TB, args ...string) string {
	t.Helper()
	cmd := exec.Command(p.Path, args...)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%v printed:\n%s", args, out)
	return string(out)
}

// Consumers returns, for each kind of memory that this machine has, a library whose arrays use the memory without a copy: CuPy or
// PyTorch on a real GPU, NumPy for host memory.
func (p *Interpreter) Consumers(t testing.TB) map[mempool.Kind]string {
	t.Helper()
	cmd := exec.Command(p.Path, "-m", "poolbridge.worker")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = in.Write([]byte(`{"task": "probe", "with": {}}` + "\n"))
	require.NoError(t, err)
	var reply struct {
		Answer struct {
			Consumers map[mempool.Kind][]string `json:"consumers"`
		} `json:"answer"`
	}
	require.NoError(t, json.NewDecoder(out).Decode(&reply))
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	found := map[mempool.Kind]string{mempool.Host: "numpy"}
	for _, library := range reply.Answer.Consumers[mempool.Device] {
		if mempool.Device.Probe("") == nil && (library == "cupy" || library == "torch") {
			found[mempool.Device] = library
			break
		}
	}
	return found
}
