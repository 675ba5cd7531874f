package hostmem

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// system reads what the kernel says about memory, from files below a root.
type system struct {
	root   string
	mounts func() ([]mount, error)
	files  *files
}

func newSystem(root string) system {
	return system{root: root, files: &files{open: make(map[string]*os.File), absent: make(map[string]bool)}, mounts: sync.OnceValues(func() ([]mount, error) { return readMounts(root) })}
}

// bounds returns all limits, the machine's first.
func (s system) bounds() ([]Bound, error) {
	machine, err := s.machine()
	if err != nil {
		return nil, err
	}
	groups, err := s.groups()
	if err != nil {
		return nil, err
	}
	return append([]Bound{machine}, groups...), nil
}

// machine returns the memory of the machine, without swap.
func (s system) machine() (Bound, error) {
	path := filepath.Join(s.root, "proc/meminfo")
	kib, err := s.numbers(path, "MemTotal:", "MemAvailable:")
	if err != nil {
		return Bound{}, err
	}
	return Bound{Name: "the machine", Total: kib[0] << 10, Left: min(kib[0], kib[1]) << 10}, nil
}

// numbers returns the numbers after the keys, each of which is at the beginning of a line. A missing key is an error.
func (s system) numbers(path string, keys ...string) ([]uint64, error) {
	text, err := s.files.read(path)
	if err != nil {
		return nil, err
	}
	found := make([]uint64, len(keys))
	missing := len(keys)
	for lines := bufio.NewScanner(bytes.NewReader(text)); missing > 0; {
		if !lines.Scan() {
			return nil, fmt.Errorf("%s lacks one of %s", path, strings.Join(keys, " "))
		}
		fields := strings.Fields(lines.Text())
		for i, key := range keys {
			if len(fields) < 2 || fields[0] != key {
				continue
			}
			if found[i], err = strconv.ParseUint(fields[1], 10, 64); err != nil {
				return nil, fmt.Errorf("%s: %s is no number: %w", path, key, err)
			}
			missing--
		}
	}
	return found, nil
}
