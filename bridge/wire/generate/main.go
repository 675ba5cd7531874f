// Command generate makes code and lists from bridge/wire/messages.go: messages_gen.go of package wire, the messages of the Python
// client, the public types of the entries of lists, and the lists of docs/protocol.md. From limits.go it generates the numbers that Go,
// Python and C share. It takes no arguments: the command go generate ./bridge/wire runs it.
package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
)

const source = "messages.go"

func main() {
	written, err := run(".")
	for _, path := range written {
		fmt.Println("written:", path)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// run writes the files whose content has changed, and returns the paths of these files. wire is the folder of package wire.
func run(wire string) (written []string, err error) {
	files, err := generate(wire)
	if err != nil {
		return nil, err
	}
	for _, path := range slices.Sorted(maps.Keys(files)) {
		if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, files[path]) {
			continue
		}
		if err := os.WriteFile(path, files[path], 0o644); err != nil {
			return written, err
		}
		written = append(written, path)
	}
	return written, nil
}

// generate makes the content of the files that depend on the messages.
func generate(wire string) (map[string][]byte, error) {
	text, err := os.ReadFile(filepath.Join(wire, source))
	if err != nil {
		return nil, err
	}
	s, err := parse(source, text)
	if err != nil {
		return nil, err
	}
	root := filepath.Join(wire, "..", "..")
	pagePath := filepath.Join(root, "docs", "protocol.md")
	page, err := os.ReadFile(pagePath)
	if err != nil {
		return nil, err
	}
	if page, err = s.page(page); err != nil {
		return nil, err
	}
	files := map[string][]byte{pagePath: page}
	for path, write := range map[string]func() ([]byte, error){
		"bridge/wire/messages_gen.go":            s.golang,
		"bridge/internal/convert/entries_gen.go": s.conversions,
		"mempool/entries_gen.go":                 s.types,
		"cmd/poolsvc/entries_gen.go":             s.json,
		"python/poolbridge/_wire/messages.py":    s.python,
		"python/poolbridge/_client/entries.py":   s.entries,
	} {
		if files[filepath.Join(root, path)], err = write(); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	if text, err = os.ReadFile(filepath.Join(wire, limitsSource)); err != nil {
		return nil, err
	}
	found, err := limits(limitsSource, text)
	if err != nil {
		return nil, err
	}
	for place, of := range limitFiles {
		if files[filepath.Join(root, of.path)], err = of.write(found[place]); err != nil {
			return nil, fmt.Errorf("%s: %w", of.path, err)
		}
	}
	return files, nil
}
