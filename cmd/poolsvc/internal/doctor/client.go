package doctor

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
)

// packages are the names under which pip installs the packages that a worker can use.
var packages = []string{"poolbridge", "numpy", "msgspec", "cuda-core", "cuda-bindings", "cupy", "torch", "jax", "numba"}

// listPackages is a Python program. Its arguments are names of packages. It prints the versions of these packages as JSON. The package of
// CuPy has a different name for each CUDA version, so the program finds this package by the beginning of its name.
const listPackages = `
import importlib.machinery, importlib.metadata as m, importlib.util, json, sys
found = {d.metadata["Name"].lower(): d.version for d in m.distributions()}
cupy = next((v for n, v in found.items() if n.startswith("cupy")), None)
package = importlib.util.find_spec("poolbridge")
def module(name):
    return package and importlib.machinery.PathFinder.find_spec("poolbridge." + name, package.submodule_search_locations)
print(json.dumps({"python": sys.version.split()[0], "native": bool(module("_native")),
    "packages": {n: cupy if n == "cupy" else found.get(n) for n in sys.argv[1:]}}))
`

// install is how a user installs the Python package, with what it needs for memory of a GPU. It is in no package registry.
const install = "install poolbridge from a checkout: pip install '/path/to/poolbridge[cuda]'"

// native has texts that say whether the poolbridge package has its native module.
var native = map[bool]string{true: " (native module)", false: " (no native module)"}

// python examines the interpreter that runs the workers.
func (c *chart) python(ctx context.Context, interpreter string) {
	cmd := exec.CommandContext(ctx, interpreter, append([]string{"-c", listPackages}, packages...)...)
	cmd.Env = append(os.Environ(), child.SafePath)
	out, err := cmd.Output()
	if err != nil {
		detail := err.Error()
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			detail += ": " + strings.TrimSpace(string(exit.Stderr))
		}
		c.missing("python", "name another interpreter with --python", "%s cannot be used: %s", interpreter, detail)
		return
	}
	var found struct {
		Python   string             `json:"python"`
		Native   bool               `json:"native"`
		Packages map[string]*string `json:"packages"`
	}
	if err := json.Unmarshal(out, &found); err != nil {
		c.missing("python", "name another interpreter with --python", "%s: %v", interpreter, err)
		return
	}
	c.ok("python", "%s is Python %s", interpreter, found.Python)
	var have, lack []string
	for _, name := range packages {
		if v := found.Packages[name]; v != nil {
			have = append(have, name+" "+*v)
			if name == "poolbridge" {
				have[len(have)-1] += native[found.Native]
			}
		} else {
			lack = append(lack, name)
		}
	}
	if len(have) > 0 {
		c.ok("packages", "%s", strings.Join(have, ", "))
	}
	if slices.Contains(lack, "poolbridge") {
		c.missing("packages", install, "poolbridge is not installed")
	} else if !found.Native {
		c.warn("packages", "install a C compiler and the headers of Python, and then poolbridge again with -v, which says what failed",
			"poolbridge is installed without its native module: it can use no channels")
	}
	if c.noGPU {
		return
	}
	switch v := found.Packages["cuda-core"]; {
	case v == nil:
		c.warn("packages", "to use GPU memory, "+install, "cuda-core is not installed")
	case *v == "1.3.0":
		c.warn("packages", "install cuda-core 1.3.1 or newer, or 1.2", "cuda-core 1.3.0 has import races")
	case strings.HasPrefix(*v, "0.") || strings.HasPrefix(*v, "1.0."):
		c.missing("packages", install, "cuda-core %s is too old", *v)
	}
	if c.simulated() {
		return
	}
	for _, name := range []string{"cupy", "torch", "jax", "numba"} {
		if found.Packages[name] != nil {
			return
		}
	}
	c.warn("packages", "install one of them to work on GPU memory in Python", "none of cupy, torch, jax and numba is installed")
}

// simulated reports whether the CUDA driver of this machine is the simulated driver of the tests. The array libraries (such as CuPy) do not
// work with the simulated driver.
func (c *chart) simulated() bool {
	return slices.ContainsFunc(c.findings, func(f Finding) bool { return strings.Contains(f.Detail, "SIMULATED") })
}

// socket examines whether a service is running at path.
func (c *chart) socket(ctx context.Context, path string) {
	client, err := bridge.Dialer{Watch: true}.Dial(ctx, path)
	switch {
	case errors.Is(err, bridge.ErrNotRunning):
		c.warn("service", "start one with `poolsvc serve`", "none is running on %s", path)
	case errors.Is(err, bridge.ErrDenied):
		c.missing("service", "start it with --mode 0660 and a group that this user is in, or run as its user", "%v", err)
	case err != nil:
		c.missing("service", "check who may open the socket, and the service's log", "%s: %v", path, err)
	default:
		c.ok("service", "runs on %s", path)
		if err := client.Close(); err != nil {
			c.warn("service", "", "closing the session: %v", err)
		}
	}
}
