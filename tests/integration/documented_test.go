package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

// imports is the beginning of each generated file: the packages that blocks of Go use. The last line uses every
// package, as Go requires.
const imports = `package documented

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

var _ = []any{context.Background, binary.NativeEndian, errors.Is, fmt.Sprint, time.Second, bridge.Dial, cuda.DeviceAt, mempool.Host}

`

// names declares the variables that the pages explain only in words.
const names = `
var (
	ctx     context.Context
	kind    mempool.Kind
	client  *bridge.Client
	channel *bridge.Channel
	frame   *bridge.Frame
	lease   *bridge.Lease
	device  cuda.Device
	gpu     *cuda.Context
	stream  *cuda.Stream
	handle  uintptr
	q       mempool.Queue
	launch  func(uintptr)
	tracer  bridge.Tracer
	work    func(context.Context, *bridge.Client) error
)
`

// Every block of Go in README and docs compiles. A block uses only the names that it declares itself, and
// the variables that the text in the constant `names` declares.
func TestEveryDocumentedBlockOfGoCompiles(t *testing.T) {
	build := filepath.Join(rig.Root(), "build")
	if _, err := exec.LookPath("go"); err != nil {
		t.Skipf("%v: the machine that builds the tests checks this", err)
	}
	require.NoError(t, os.MkdirAll(build, 0o755))
	folder, err := os.MkdirTemp(build, "documented")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(folder) })
	require.NoError(t, os.WriteFile(filepath.Join(folder, "names.go"), []byte(imports+names), 0o600))
	blocks := 0
	for _, path := range append(glob(t, "README.md"), glob(t, "docs/*.md")...) {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		for _, block := range strings.Split(string(text), "```go\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			if !strings.Contains(block, "return") {
				block += "_ = err\nreturn nil\n"
			}
			blocks++
			name := fmt.Sprintf("%s_%d.go", strings.TrimSuffix(filepath.Base(path), ".md"), blocks)
			require.NoError(t, os.WriteFile(filepath.Join(folder, name), fmt.Appendf(nil, "%sfunc _() error {\n%s}\n", imports, block), 0o600))
		}
	}
	require.NotZero(t, blocks)
	vet := exec.CommandContext(t.Context(), "go", "vet", "./"+filepath.Base(folder))
	vet.Dir = build
	out, err := vet.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// The commands of docs/install.md for a program in a folder of its own run, with the checkout at ~/poolbridge.
func TestAProgramOfOnesOwnUsesACheckout(t *testing.T) {
	found, err := exec.Command("go", "env", "GOMODCACHE", "GOCACHE", "GOPATH", "GOPROXY").Output()
	if err != nil {
		t.Skipf("%v: the machine that builds the tests checks this", err)
	}
	folders := strings.Fields(string(found))
	if folders[3] == "off" {
		t.Skip("GOPROXY is off, so Go fetches no modules here")
	}
	text, err := os.ReadFile(filepath.Join(rig.Root(), "docs", "install.md"))
	require.NoError(t, err)
	_, after, _ := strings.Cut(string(text), "```sh\nmkdir hello")
	commands, _, ok := strings.Cut(after, "```")
	require.True(t, ok)
	home := t.TempDir()
	require.NoError(t, os.Symlink(rig.Root(), filepath.Join(home, "poolbridge")))
	run := exec.CommandContext(t.Context(), "sh", "-ec", "trap 'kill $!' EXIT; mkdir hello"+commands)
	run.Dir = home
	run.Env = append(os.Environ(), "HOME="+home, "POOLBRIDGE_SOCKET="+filepath.Join(home, "run", "s.sock"),
		"GOMODCACHE="+folders[0], "GOCACHE="+folders[1], "GOPATH="+folders[2])
	out, err := run.CombinedOutput()
	require.NoError(t, err, "%s", out)
}
