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
