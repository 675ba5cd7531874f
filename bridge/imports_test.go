package bridge

import (
	"encoding/json"
	"errors"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/poolbridge/poolbridge/"

// listed is what go list says about a package.
type listed struct {
	ImportPath    string
	Imports, Deps []string
}

func goList(t *testing.T, patterns ...string) []listed {
	t.Helper()
	goCommand, err := exec.LookPath("go")
	if err != nil {
		t.Skip("there is no go command to ask")
	}
	if _, err := os.Stat("../go.sum"); errors.Is(err, fs.ErrNotExist) {
		t.Skip("go.sum is not here: run this test in a checkout")
	}
	cmd := exec.Command(goCommand, append([]string{"list", "-json=ImportPath,Imports,Deps"}, patterns...)...)
	cmd.Dir = ".."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	var all []listed
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			require.NotEmpty(t, all)
			return all
		}
		require.NoError(t, err)
		all = append(all, p)
	}
}

// within says whether path is one of the module's packages or below it.
func within(path string, rooms ...string) bool {
	return slices.ContainsFunc(rooms, func(room string) bool {
		return path == module+room || strings.HasPrefix(path, module+room+"/")
	})
}

// Each room imports only what is below it: cmd → bridge → mempool/service → mempool → cuda.
func TestTheWallsBetweenThePackages(t *testing.T) {
	for _, p := range goList(t, "./...") {
		for _, i := range p.Imports {
			said := p.ImportPath + " imports " + i
			if within(p.ImportPath, "bridge") {
				assert.False(t, within(i, "cuda", "cmd", "examples", "tests"), said)
			}
			if within(p.ImportPath, "mempool") {
				assert.False(t, within(i, "bridge", "cmd", "examples", "tests"), said)
				assert.NotEqual(t, "net", i, said)
			}
			if within(i, "mempool/service") {
				assert.True(t, within(p.ImportPath, "bridge", "cmd", "examples", "tests"), said)
			}
			if within(p.ImportPath, "mempool/service") {
				assert.False(t, within(i, "cuda"), said)
			}
			if within(p.ImportPath, "internal/situation", "internal/sizeclass", "internal/bytesize", "internal/program") {
				assert.False(t, strings.HasPrefix(i, module), said)
			}
			if within(p.ImportPath, "cuda") {
				assert.False(t, within(i, "mempool", "bridge", "cmd", "examples", "tests"), said)
			}
			if within(p.ImportPath, "bridge/wire", "bridge/seqpacket") {
				assert.False(t, within(i, "mempool", "bridge"), said)
			}
			if within(p.ImportPath, "internal/shmchannel") {
				assert.False(t, within(i, "mempool", "bridge", "cuda", "cmd", "examples", "tests"), said)
				assert.NotEqual(t, "net", i, said)
			}
			if within(i, "cuda/internal/driver") {
				assert.True(t, within(p.ImportPath, "cuda"), said)
			}
			if strings.HasPrefix(i, "github.com/vmihailenco/") {
				assert.True(t, within(p.ImportPath, "bridge/wire"), said)
			}
			if strings.HasPrefix(i, "github.com/NVIDIA/go-nvml") {
				assert.True(t, within(p.ImportPath, "cuda/nvml"), said)
			}
			if i == "C" {
				assert.True(t, within(p.ImportPath, "cuda"), said)
			}
		}
	}
}

// The client does without the service.
func TestOnlyTheServerImportsTheService(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") || strings.HasPrefix(name, "server") || strings.HasPrefix(name, "handle") || name == "notices.go" {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		require.NoError(t, err)
		for _, i := range f.Imports {
			assert.NotEqual(t, strconv.Quote(module+"mempool/service"), i.Path.Value, name)
		}
	}
}

func TestWholeProgramsDependOnNoMore(t *testing.T) {
	foreign := func(p listed) (paths []string) {
		for _, d := range p.Deps {
			if first, _, _ := strings.Cut(d, "/"); strings.Contains(first, ".") && !strings.HasPrefix(d, module) {
				paths = append(paths, strings.Join(strings.SplitN(d, "/", 4)[:min(3, strings.Count(d, "/")+1)], "/"))
			}
		}
		slices.Sort(paths)
		return slices.Compact(paths)
	}
	for room, want := range map[string][]string{
		"cuda":                nil,
		"internal/shmchannel": {"golang.org/x/sys"},
		"mempool":             {"golang.org/x/sys"},
		"mempool/service":     {"golang.org/x/sys"},
		"bridge/seqpacket":    {"golang.org/x/sys"},
		"bridge/wire/schema":  nil,
		"bridge/wire":         {"github.com/vmihailenco/msgpack", "github.com/vmihailenco/tagparser"},
		"bridge":              {"github.com/vmihailenco/msgpack", "github.com/vmihailenco/tagparser", "golang.org/x/sys"},
	} {
		p := goList(t, module+room)[0]
		assert.Subset(t, append(want, "golang.org/x/sys"), foreign(p), room)
		if room == "mempool" || room == "mempool/service" || room == "cuda" || room == "internal/shmchannel" {
			assert.NotContains(t, p.Deps, "net", room)
		}
	}
}
