package bridge

import (
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const module = "github.com/poolbridge/poolbridge/"

// listed is what go list says about one package.
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

// within says whether path is in one of the given folders of the module.
func within(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(folder string) bool {
		return path == module+folder || strings.HasPrefix(path, module+folder+"/")
	})
}

// The packages form layers. From the top, the layers are: cmd; bridge and bridge/server; mempool; cuda. No package imports a package of a
// higher layer. The packages of folder bridge and package mempool/service do not import cuda directly. Of the packages below cmd, only
// bridge/server imports mempool/service.
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
				assert.True(t, within(p.ImportPath, "mempool/service", "bridge/server", "cmd", "examples", "tests"), said)
			}
			if within(p.ImportPath, "bridge/server", "bridge/internal") {
				assert.NotEqual(t, module+"bridge", i, said)
			}
			if within(i, "bridge/internal/session", "bridge/internal/stream") {
				assert.True(t, within(p.ImportPath, "bridge/internal/stream") || p.ImportPath == module+"bridge", said)
			}
			if within(i, "tests/harness") {
				assert.Fail(t, "only tests import it", said)
			}
			if within(p.ImportPath, "mempool/service") {
				assert.False(t, within(i, "cuda"), said)
			}
			if within(p.ImportPath, "internal/typed", "internal/sizeclass", "internal/bytesize", "internal/program") {
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
				assert.True(t, within(p.ImportPath, "bridge/wire", "mempool/service/ledger"), said)
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
	for folder, want := range map[string][]string{
		"cuda":                 nil,
		"internal/shmchannel":  {"golang.org/x/sys"},
		"mempool":              {"golang.org/x/sys"},
		"mempool/service":      {"github.com/vmihailenco/msgpack", "github.com/vmihailenco/tagparser", "golang.org/x/sys"},
		"bridge/seqpacket":     {"golang.org/x/sys"},
		"bridge/wire/generate": nil,
		"bridge/wire":          {"github.com/vmihailenco/msgpack", "github.com/vmihailenco/tagparser"},
		"bridge":               {"github.com/vmihailenco/msgpack", "github.com/vmihailenco/tagparser", "golang.org/x/sys"},
		"bridge/server":        {"github.com/vmihailenco/msgpack", "github.com/vmihailenco/tagparser", "golang.org/x/sys"},
	} {
		p := goList(t, module+folder)[0]
		if folder == "bridge" {
			assert.NotContains(t, p.Deps, module+"mempool/service", "the client does without the service")
		}
		assert.Subset(t, append(want, "golang.org/x/sys"), foreign(p), folder)
		if folder == "mempool" || folder == "mempool/service" || folder == "cuda" || folder == "internal/shmchannel" {
			assert.NotContains(t, p.Deps, "net", folder)
		}
	}
}
