package main

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestWhatIsCommittedIsWhatTheMessagesSay(t *testing.T) {
	files, err := generate("..")
	require.NoError(t, err)
	require.Equal(t, 12, len(files))
	for path, want := range files {
		got, err := os.ReadFile(path)
		require.NoError(t, err)
		if string(got) != string(want) {
			t.Errorf("%s is not what bridge/wire/messages.go and limits.go say: run `make generate`, and commit what it writes", path)
		}
	}
}

var update = flag.Bool("update", false, "write what the tests want of the tiny package")

func tiny(t *testing.T, name string) []byte {
	t.Helper()
	return readFile(t, "testdata", "tiny", name)
}

func TestEveryTypeOfFieldIsWritten(t *testing.T) {
	s, err := parse(source, tiny(t, source))
	require.NoError(t, err)
	page, err := s.page(tiny(t, "protocol.md"))
	require.NoError(t, err)
	for name, write := range map[string]func() ([]byte, error){
		"want_messages_gen.go.txt": s.golang, "want_types_gen.go.txt": s.types, "want_conversions_gen.go.txt": s.conversions,
		"want_json_gen.go.txt": s.json, "want_messages.py.txt": s.python, "want_entries.py.txt": s.entries,
		"want_protocol.md": func() ([]byte, error) { return page, nil },
	} {
		got, err := write()
		require.NoError(t, err)
		if *update {
			require.NoError(t, os.WriteFile(filepath.Join("testdata", "tiny", name), got, 0o644))
		}
		assert.Equal(t, string(tiny(t, name)), string(got), name)
	}
	again, err := s.page(page)
	require.NoError(t, err)
	assert.Equal(t, string(page), string(again), "the lists take the place of those before")
}

func TestEveryPlaceGetsItsLimits(t *testing.T) {
	found, err := limits(limitsSource, tiny(t, limitsSource))
	require.NoError(t, err)
	for place, of := range limitFiles {
		got, err := of.write(found[place])
		require.NoError(t, err)
		name := "want_limits_" + place + ".txt"
		if *update {
			require.NoError(t, os.WriteFile(filepath.Join("testdata", "tiny", name), got, 0o644))
		}
		assert.Equal(t, string(tiny(t, name)), string(got), name)
	}
}

func TestWhatIsNoLimitIsNamed(t *testing.T) {
	for source, want := range map[string]string{
		"var X = 1":                         "limits.go: expected constants and nothing else",
		"const X = 1":                       "limits.go: X: expected one name, a value, and behind it a comment that says what it means",
		"const X, Y = 1, 2 // x":            "limits.go: X: expected one name, a value, and behind it a comment that says what it means",
		"const X = -1 // x":                 "limits.go: X: expected a number from 0 to 2^64-1, found -1",
		"//wire:limit c\nconst X = 1 // x":  `limits.go: expected //wire:limits PLACE …, found "//wire:limit c"`,
		"//wire:limits\nconst X = 1 // x":   `limits.go: expected //wire:limits PLACE …, found "//wire:limits"`,
		"//wire:limits d\nconst X = 1 // x": `limits.go: there is no place "d" for limits: expected some of ["c" "mempool" "python" "seqpacket" "shmchannel"]`,
	} {
		_, err := limits("limits.go", []byte("package wire\n\n"+source+"\n"))
		assert.EqualError(t, err, want, source)
	}
}

func TestWhatTheGeneratorCannotWriteIsNamed(t *testing.T) {
	message := func(field string) string {
		return "// Ask asks.\n//\n//wire:request ask\ntype Ask struct {\n" + field + "\n}\n"
	}
	for source, want := range map[string]string{
		"type Ask struct{}":                                               "Ask: expected a comment that begins with its name and a verb",
		"// It asks.\ntype Ask struct{}":                                  "Ask: expected a comment that begins with its name and a verb",
		"// Ask asks.\ntype Ask uint64":                                   "Ask: expected a struct or an array of bytes",
		"// Ask asks.\ntype Ask [2]uint64":                                "Ask: expected a struct or an array of bytes",
		"func ask() {}":                                                   "messages.go: expected types and nothing else",
		"// A asks.\n//wire:reply a\ntype A struct{}":                     `A: expected one //wire:request OPERATION REPLY, one //wire:notice NAME, one //wire:public, or one //wire:go, found "//wire:reply a"`,
		"// A asks.\n//wire:\ntype A struct{}":                            `A: expected one //wire:request OPERATION REPLY, one //wire:notice NAME, one //wire:public, or one //wire:go, found "//wire:"`,
		"// A asks.\n//wire:request a B\ntype A struct{}":                 "A: there is no structure B to answer it",
		message("X uint64 `wire:\"x\"`"):                                  "Ask: X: expected a comment that says what it means, without a vertical bar",
		message("X uint64 `wire:\"x\"` // a|b"):                           "Ask: X: expected a comment that says what it means, without a vertical bar",
		message("X uint64 // x"):                                          "Ask: expected one name and a tag in front of each meaning, found uint64",
		message("X, Y uint64 `wire:\"x\"` // x"):                          "Ask: expected one name and a tag in front of each meaning, found uint64",
		message("X uint64 `wire:\"from\"` // x"):                          `Ask: X: expected a name and a key that Python and Go can have as a name, found x and "from"`,
		message("X uint64 `wire:\"if\"` // x"):                            `Ask: X: expected a name and a key that Python and Go can have as a name, found x and "if"`,
		message("From uint64 `wire:\"x\"` // x"):                          `Ask: From: expected a name and a key that Python and Go can have as a name, found from and "x"`,
		message("X uint64 `wire:\"x?,nil\"` // x"):                        "Ask: X: expected a tag wire:\"KEY\", wire:\"KEY?\", wire:\"KEY,text\" for a string, wire:\"KEY?,none\", wire:\"KEY,embed\", or wire:\",inline\", found `wire:\"x?,nil\"`",
		message("X uint64 `wire:\"x\" poolsvc:\",never\"` // x"):          "Ask: X: expected a tag poolsvc:\"KEY\", poolsvc:\"KEY,zero\" or poolsvc:\"KEY,omitempty\", found `wire:\"x\" poolsvc:\",never\"`",
		message("X uint64 `wire:\"x,none\"` // x"):                        "Ask: X: there is no optional field X that says whether it has a value",
		message("X uint64 `wire:\"x?,none=Y\"` // x"):                     "Ask: X: there is no optional field Y that says whether it has a value",
		message("X Part `wire:\"x,embed\"` // x"):                         "Ask: X: only a structure with //wire:go can be embedded",
		message("X uint64 `wire:\"q\"` // x"):                             `Ask: X: the key "q" belongs to the envelope`,
		message("Number uint64 `wire:\"x\"` // x"):                        "Ask: Number: the name number belongs to the envelope in Python",
		message("X uint32 `wire:\"x\"` // x"):                             "Ask: X: package wire has no field of type uint32 yet: see field.go",
		message("X []bool `wire:\"x\"` // x"):                             "Ask: X: package wire has no field of type []bool yet: see field.go",
		message("X *uint64 `wire:\"x?\"` // x"):                           "Ask: X: package wire has no field of type *uint64 yet: see field.go",
		message("X *Part `wire:\"x\"` // x"):                              "Ask: X: expected a pointer where a structure is optional, and only there, found *Part",
		message("X Part `wire:\"x?\"` // x"):                              "Ask: X: expected a pointer where a structure is optional, and only there, found Part",
		message("X Ask `wire:\"x\"` // x"):                                "Ask: X: package wire has no field of type Ask yet: see field.go",
		message("X Part `wire:\",inline\"` // x"):                         "Ask: X: only a notice can have a structure inline, and has nothing else then",
		message("X uint64 `wire:\"x,text\"` // x"):                        "Ask: X: expected a tag wire:\"KEY\", wire:\"KEY?\", wire:\"KEY,text\" for a string, wire:\"KEY?,none\", wire:\"KEY,embed\", or wire:\",inline\", found `wire:\"x,text\"`",
		message("X uint64 `wire:\"x\"` // x\nY uint64 `wire:\"x\"` // y"): `Ask: Y: its key "x" is taken`,
		message("") + strings.ReplaceAll(message(""), "Ask", "Other"):     `Other: Ask has the name "ask" already`,
	} {
		_, err := parse("messages.go", []byte("package wire\n\n// Part is here.\ntype Part struct{}\n\n// EmptyReply says nothing.\ntype EmptyReply struct{}\n\n"+source))
		assert.EqualError(t, err, want, source)
	}
}

// A structure has one name everywhere, and no other public type has this name.
func TestNoPublicNameMeansTwoThings(t *testing.T) {
	root := filepath.Join("..", "..", "..")
	s, err := parse(source, readFile(t, "..", source))
	require.NoError(t, err)
	known := map[string]*structure{}
	for _, one := range s.structs {
		known[one.name] = one
	}
	inMempool := map[string]bool{}
	for _, folder := range []string{"bridge", "bridge/server", "mempool", "mempool/service"} {
		for name, alias := range exportedTypes(t, filepath.Join(root, folder)) {
			_, of, _ := strings.Cut(alias, ".")
			inMempool[name] = inMempool[name] || folder == "mempool"
			one := known[name]
			same := one == nil || folder == "mempool" && (one.public || one.byHand) || folder == "mempool/service" && one.role == notice
			assert.True(t, same || alias == "mempool."+name, "%s.%s is not the structure %[2]s of messages.go: it needs another name", folder, name)
			assert.True(t, alias == "" || of == name, "%s.%s is another name for %s", folder, name, alias)
		}
	}
	inPython := map[string]bool{}
	for _, found := range regexp.MustCompile(`([A-Z]\w+) as (\w+)`).FindAllSubmatch(readFile(t, root, "python", "poolbridge", "__init__.py"), -1) {
		assert.True(t, string(found[1]) == string(found[2]), "poolbridge.%s is another name for %s", found[2], found[1])
		inPython[string(found[2])] = true
	}
	for name, one := range known {
		assert.Equal(t, one.public || one.byHand, inMempool[name], "mempool.%s", name)
		assert.Equal(t, one.public, inPython[name], "poolbridge.%s", name)
	}
}

func readFile(t *testing.T, path ...string) []byte {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(path...))
	require.NoError(t, err)
	return content
}

// exportedTypes returns the exported types of a package. The value of an alias is what it stands for; the value of another type is empty.
func exportedTypes(t *testing.T, folder string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	require.NoError(t, err)
	found := map[string]string{}
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		require.NoError(t, err)
		for name, object := range file.Scope.Objects {
			if declared, ok := object.Decl.(*ast.TypeSpec); ok && ast.IsExported(name) {
				if found[name] = ""; declared.Assign.IsValid() {
					found[name] = types.ExprString(declared.Type)
				}
			}
		}
	}
	require.NotEmpty(t, found)
	return found
}

func TestThePageHasAPlaceForEachTable(t *testing.T) {
	s, err := parse(source, []byte("package wire\n\n// Part is here.\ntype Part struct{}\n"))
	require.NoError(t, err)
	place := func(name string) string { return "<!-- make generate: " + name + " -->\n<!-- /make generate -->\n" }
	for page, want := range map[string]string{
		place("Requests") + place("Notices"):                                 "the page lacks <!-- make generate: Part --> and, some lines below, <!-- /make generate -->",
		place("Requests") + place("Notices") + place("Part") + place("Part"): "the page has a place for Part: there is no such structure, or it has a second place",
		place("Requests") + place("Notices") + place("Part") + place("Ode"):  "the page has a place for Ode: there is no such structure, or it has a second place",
	} {
		_, err := s.page([]byte(page))
		assert.EqualError(t, err, want)
	}
}

func TestOnlyWhatChangesIsWritten(t *testing.T) {
	root := t.TempDir()
	wire := filepath.Join(root, "bridge", "wire")
	for _, folder := range []string{"bridge/wire", "bridge/internal/convert", "mempool", "cmd/poolsvc", "docs", "python/poolbridge/_wire", "python/poolbridge/_client", "python/native", "internal/shmchannel", "bridge/seqpacket"} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, folder), 0o755))
	}
	_, err := run(wire)
	require.ErrorContains(t, err, "messages.go: no such file")
	require.NoError(t, os.WriteFile(filepath.Join(wire, source), tiny(t, source), 0o644))
	_, err = run(wire)
	require.ErrorContains(t, err, "protocol.md: no such file")
	require.NoError(t, os.WriteFile(filepath.Join(root, "docs", "protocol.md"), tiny(t, "protocol.md"), 0o644))
	_, err = run(wire)
	require.ErrorContains(t, err, "limits.go: no such file")
	require.NoError(t, os.WriteFile(filepath.Join(wire, limitsSource), tiny(t, limitsSource), 0o644))
	written, err := run(wire)
	require.NoError(t, err)
	require.Len(t, written, 12)
	made := filepath.Join(wire, "messages_gen.go")
	require.NoError(t, os.WriteFile(made, nil, 0o644))
	written, err = run(wire)
	require.NoError(t, err)
	require.Equal(t, []string{made}, written)
	written, err = run(wire)
	require.NoError(t, err)
	require.Empty(t, written)
}
