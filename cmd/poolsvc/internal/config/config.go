// Package config reads the configuration file of a service. It returns each value and the number of its line. It does not interpret the
// values.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v4"
)

// maxBytes is the greatest size of a configuration file.
const maxBytes = 1 << 20

// Problem is a mistake in a configuration file.
type Problem struct {
	File   string
	Line   int // 0: the problem concerns the whole file
	Reason string
}

func (p *Problem) Error() string {
	if p.Line == 0 {
		return p.File + ": " + p.Reason
	}
	return fmt.Sprintf("%s:%d: %s", p.File, p.Line, p.Reason)
}

// Problems are all mistakes in a file, in the order of its lines.
type Problems []*Problem

// mostTold is how many problems the text of an error lists at most.
const mostTold = 100

func (all Problems) Error() string {
	shown := all[:min(len(all), mostTold)]
	lines := make([]string, 0, len(shown)+1)
	for _, p := range shown {
		lines = append(lines, p.Error())
	}
	if more := len(all) - len(shown); more > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", more))
	}
	return strings.Join(lines, "\n")
}

// Add adds a problem in a line of a file.
func (all *Problems) Add(file string, line int, format string, args ...any) {
	*all = append(*all, &Problem{file, line, fmt.Sprintf(format, args...)})
}

// Err returns the problems as an error, or nil if there are no problems.
func (all Problems) Err() error {
	if len(all) == 0 {
		return nil
	}
	slices.SortStableFunc(all, func(a, b *Problem) int { return a.Line - b.Line })
	return all
}

// Value is the value of a key: one text, or several texts if the value is a list.
type Value struct {
	Key   string
	Line  int
	Texts []string
	// Broken says that the value is neither a text nor a list of texts. In this case, Texts is empty, and a [Problem] describes the
	// mistake.
	Broken bool
}

// Item is one element of the list pools.
type Item struct {
	Called string // how problems name the pool: by its name, or by its place in the list
	Line   int
	Values []Value
}

// File is a configuration file. The key of a value includes the name of its section, for example "http.address".
type File struct {
	Path   string
	Values []Value
	Pools  []Item
}

// Parse reads the text of a YAML file. The file has sections, and a section has keys. The value of a key is a text or a list of texts. The file
// may also have the list "pools". Each element of this list has keys, like a section. The function `keys` returns the keys that a section may
// have, and for "" the sections themselves.
//
// Errors: [Problems] if the text has mistakes; Parse then also returns the values that it could read.
func Parse(path string, text []byte, keys func(section string) []string) (*File, error) {
	f := &File{Path: path}
	var root yaml.Node
	loader, err := yaml.NewLoader(bytes.NewReader(text))
	if err == nil {
		err = loader.Load(&root)
	}
	switch {
	case errors.Is(err, io.EOF):
		return f, nil
	case err != nil:
		return f, Problems{broken(path, err)}
	}
	r := reader{file: f, keys: keys}
	r.root(root.Content[0])
	var second yaml.Node
	if err := loader.Load(&second); err == nil {
		r.problems.Add(path, second.Line, "a second document (---): a configuration has only one")
	} else if !errors.Is(err, io.EOF) {
		r.problems = append(r.problems, broken(path, err))
	}
	return f, r.problems.Err()
}

// Load returns the text of a file; it is not nil. Load refuses a file that other users can change, and a file whose owner is neither the user of
// this process nor root. The reason is that the file says which users may use memory.
//
// Errors: a [Problem] if Load refuses the file; errors of the file system.
func Load(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0) // with O_NONBLOCK, opening a FIFO does not wait
	if err != nil {
		return nil, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	switch owner := info.Sys().(*syscall.Stat_t).Uid; {
	case !info.Mode().IsRegular():
		return nil, &Problem{File: path, Reason: "expected a regular file, not " + info.Mode().String()}
	case info.Mode().Perm()&0o022 != 0:
		return nil, &Problem{File: path, Reason: fmt.Sprintf("users other than its owner may change it (mode %#o): chmod go-w it", info.Mode().Perm())}
	case owner != 0 && int(owner) != os.Geteuid():
		return nil, &Problem{File: path, Reason: fmt.Sprintf("user %d owns it: expected root, or user %d that runs the service", owner, os.Geteuid())}
	case info.Size() > maxBytes:
		return nil, &Problem{File: path, Reason: fmt.Sprintf("it has %d bytes: expected at most %d", info.Size(), maxBytes)}
	}
	return io.ReadAll(io.LimitReader(file, maxBytes))
}

// broken returns a YAML error as a problem with the line of the error.
func broken(path string, err error) *Problem {
	p := &Problem{File: path, Reason: err.Error()}
	if at, ok := errors.AsType[*yaml.LoadError](err); ok {
		p.Line, p.Reason = at.Mark.Line, "this is no YAML: "+at.Message
	}
	return p
}

// reader reads a YAML tree.
type reader struct {
	file     *File
	keys     func(section string) []string
	problems Problems
}

func (r *reader) wrong(at *yaml.Node, format string, args ...any) {
	r.problems.Add(r.file.Path, at.Line, format, args...)
}

func (r *reader) root(node *yaml.Node) {
	if null(node) {
		return
	}
	r.pairs(node, "the configuration", func(section string, key, value *yaml.Node) {
		switch {
		case section == "pools":
			r.pools(value)
		case !slices.Contains(r.keys(""), section):
			text, _ := noSuchKey(section, r.keys(""), "")
			r.wrong(key, "%s: %s", section, text)
		case !null(value):
			r.pairs(value, section, func(name string, key, value *yaml.Node) {
				r.value(&r.file.Values, section, name, section+".", key, value)
			})
		}
	})
}

func (r *reader) pools(list *yaml.Node) {
	if null(list) {
		return
	}
	if list.Kind != yaml.SequenceNode {
		r.wrong(list, "pools: expected a list, each pool with - before it, not %s", said(list))
		return
	}
	for i, node := range list.Content {
		item := Item{Called: called(i+1, node), Line: node.Line}
		if r.pairs(node, item.Called, func(name string, key, value *yaml.Node) {
			r.value(&item.Values, "pools", name, item.Called+": ", key, value)
		}) {
			r.file.Pools = append(r.file.Pools, item)
		}
	}
}

// pairs calls the function `tell` for each key of the node, with the key and its value. It returns false if the node does not consist of
// keys with values.
func (r *reader) pairs(node *yaml.Node, what string, tell func(name string, key, value *yaml.Node)) bool {
	if node.Kind != yaml.MappingNode {
		r.wrong(node, "%s: expected keys with values (key: value), not %s", what, said(node))
		return false
	}
	lines := make(map[string]int)
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			r.wrong(key, "%s: expected a key, not %s", what, said(key))
			continue
		}
		if first, twice := lines[key.Value]; twice {
			r.wrong(key, "%s: %s is given twice, first in line %d", what, key.Value, first)
			continue
		}
		lines[key.Value] = key.Line
		tell(key.Value, key, value)
	}
	return true
}

// called returns the name that problems use for a pool. number is the place of the pool in the list.
func called(number int, pool *yaml.Node) string {
	for i := 0; pool.Kind == yaml.MappingNode && i+1 < len(pool.Content); i += 2 {
		if key, value := pool.Content[i], pool.Content[i+1]; key.Value == "name" && value.Kind == yaml.ScalarNode && value.Value != "" {
			return fmt.Sprintf("pool %q", value.Value)
		}
	}
	return fmt.Sprintf("pool %d of the list", number)
}

// value adds a value to a list of values. In problems, `before` stands before its name. If the section has no key with this name, value adds a
// broken value for each key that may have been meant.
func (r *reader) value(to *[]Value, section, name, before string, key, value *yaml.Node) {
	prefix := ""
	if section != "pools" {
		prefix = section + "."
	}
	if known := r.keys(section); !slices.Contains(known, name) {
		text, meant := noSuchKey(name, known, prefix)
		r.wrong(key, "%s%s: %s", before, name, text)
		for _, one := range meant {
			*to = append(*to, Value{Key: prefix + one, Line: key.Line, Broken: true})
		}
		return
	}
	v := Value{Key: prefix + name, Line: key.Line}
	nodes := []*yaml.Node{value}
	if value.Kind == yaml.SequenceNode {
		nodes = value.Content
	}
	for _, node := range nodes {
		if node.Kind != yaml.ScalarNode || null(node) {
			r.wrong(key, "%s%s: expected a value, or a list of values, not %s", before, name, said(node))
			v.Texts, v.Broken = nil, true
			break
		}
		v.Texts = append(v.Texts, node.Value)
	}
	*to = append(*to, v)
}

func null(node *yaml.Node) bool { return node.Kind == yaml.ScalarNode && node.ShortTag() == "!!null" }

// said returns a text that describes a node in a problem.
func said(node *yaml.Node) string {
	switch {
	case null(node):
		return "nothing"
	case node.Kind == yaml.ScalarNode:
		return fmt.Sprintf("%q", node.Value)
	case node.Kind == yaml.SequenceNode:
		return "a list"
	case node.Kind == yaml.MappingNode:
		return "keys with values"
	}
	return "an alias"
}
