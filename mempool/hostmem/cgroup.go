package hostmem

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// flavour has the file names and keys of one version of control groups.
type flavour struct {
	limits []string
	usage  string
	// reclaimable has keys of memory.stat: memory of a group, and of all groups below it, that the kernel can reclaim.
	reclaimable []string
}

var (
	v1 = flavour{[]string{"memory.limit_in_bytes"}, "memory.usage_in_bytes", []string{"total_inactive_file", "total_active_file"}}
	v2 = flavour{[]string{"memory.max", "memory.high"}, "memory.current", []string{"inactive_file", "active_file", "slab_reclaimable"}}
)

// mount is a mount point of a hierarchy of control groups that limits memory.
type mount struct {
	flavour flavour
	root    string // the group that is visible at the mount point
	point   string
}

// readMounts finds the mounts in /proc/self/mountinfo.
func readMounts(root string) (mounts []mount, err error) {
	path := filepath.Join(root, "proc/self/mountinfo")
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		head, tail, found := strings.Cut(line, " - ")
		where, what := strings.Fields(head), strings.Fields(tail)
		if !found || len(where) < 6 || len(what) < 3 {
			return nil, fmt.Errorf("%s: %q is no mount", path, line)
		}
		m := mount{flavour: v2, root: unescape(where[3]), point: unescape(where[4])}
		switch {
		case what[0] == "cgroup2":
		case what[0] == "cgroup" && slices.Contains(strings.Split(what[2], ","), "memory"):
			m.flavour = v1
		default:
			continue
		}
		mounts = append(mounts, m)
	}
	return mounts, nil
}

// unescape decodes a path of mountinfo, in which white space and backslashes are octal.
func unescape(path string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(path)
}

// groups returns the limits of the control groups of this process, and of all groups above them. If no mount shows a control group, this
// process cannot read the limit of this group, and groups ignores it.
func (s system) groups() (bounds []Bound, err error) {
	mounts, err := s.mounts()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.root, "proc/self/cgroup")
	text, err := s.files.read(path)
	if err != nil {
		return nil, err
	}
	s.files.in(string(text))
	for line := range strings.Lines(string(text)) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			return nil, fmt.Errorf("%s: %q is no control group", path, line)
		}
		unified := parts[0] == "0" && parts[1] == ""
		if !unified && !slices.Contains(strings.Split(parts[1], ","), "memory") {
			continue
		}
		for _, m := range mounts {
			below, seen := m.below(parts[2])
			if !seen || (m.flavour.usage == v2.usage) != unified {
				continue
			}
			found, err := s.walk(m, below)
			if err != nil {
				return nil, err
			}
			bounds = append(bounds, found...)
			break
		}
	}
	return bounds, nil
}

// below returns the path of a group relative to the mount point. seen is false if the mount does not show the group.
func (m mount) below(group string) (path string, seen bool) {
	if m.root == "/" {
		return group, !strings.HasPrefix(group, "/..") // "/.." is outside of the namespace
	}
	path, seen = strings.CutPrefix(group, m.root)
	return path, seen && (path == "" || path[0] == '/')
}

// walk returns the limits of a group and of the groups above it, up to the mount point.
func (s system) walk(m mount, group string) (bounds []Bound, err error) {
	for {
		dir := filepath.Join(m.point, group)
		found, err := s.group(m.flavour, dir)
		if err != nil {
			return nil, err
		}
		bounds = append(bounds, found...)
		if group = filepath.Dir(filepath.Join("/", group)); dir == filepath.Clean(m.point) {
			return bounds, nil
		}
	}
}

// group returns the limits of one group, if it has any.
func (s system) group(f flavour, dir string) (bounds []Bound, err error) {
	for _, file := range f.limits {
		limit, limited, err := s.readLimit(filepath.Join(s.root, dir, file))
		if err != nil {
			return nil, err
		}
		if limited {
			bounds = append(bounds, Bound{Name: filepath.Join(dir, file), Total: limit})
		}
	}
	if len(bounds) == 0 {
		return nil, nil
	}
	used, err := s.used(f, dir)
	if err != nil {
		return nil, err
	}
	for i := range bounds {
		bounds[i].Left = bounds[i].Total - min(bounds[i].Total, used)
	}
	return bounds, nil
}

// readLimit reads the limit of a control group from a file. The topmost group has no limit. A group whose memory the kernel does not count
// has no limit either.
func (s system) readLimit(path string) (limit uint64, limited bool, err error) {
	text, err := s.files.read(path)
	switch word := strings.TrimSpace(string(text)); {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, unix.ENODEV): // ENODEV: the group was removed, and this process is in another one
		return 0, false, nil
	case err != nil:
		return 0, false, err
	case word == "max":
		return 0, false, nil
	default:
		limit, err = strconv.ParseUint(word, 10, 64)
		if err != nil {
			return 0, false, fmt.Errorf("%s: %q is no limit: %w", path, word, err)
		}
		return limit, limit < noLimit, nil
	}
}

// noLimit is less than the value of v1 for no limit, which is 2^63-1 rounded down to a page.
const noLimit = math.MaxInt64 &^ (1<<20 - 1)

// used returns how many bytes a group uses, without those that the kernel can reclaim.
func (s system) used(f flavour, dir string) (uint64, error) {
	path := filepath.Join(s.root, dir, f.usage)
	text, err := s.files.read(path)
	if err != nil {
		return 0, err
	}
	used, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	given, err := s.numbers(filepath.Join(s.root, dir, "memory.stat"), f.reclaimable...)
	if err != nil {
		return 0, err
	}
	for _, n := range given {
		used -= min(used, n)
	}
	return used, nil
}
