package anomaly

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// driver controls the simulated driver through its environment and its files. All processes of a test share them.
var driver simulation

type simulation struct {
	dir   string
	rules int
}

// settle sets the environment of the simulated driver, with dir as the folder of its files. The caller must call settle
// before the driver is loaded.
func (d *simulation) settle(dir string) {
	d.dir = dir
	for name, value := range map[string]string{
		"SIMCUDA_COUNTS": dir, "SIMCUDA_CONTROL": d.path("control"), "SIMCUDA_FAULT_LOG": d.path("faults"),
		"SIMCUDA_MISUSE": d.path("misuse"), "SIMCUDA_MISUSE_DWELL_US": "1", "SIMCUDA_DEVICES": "2", "SIMCUDA_FAULTS": "",
		"SIMCUDA_MACHINE": fmt.Sprintf("anomaly%d", os.Getpid()),
	} {
		_ = os.Setenv(name, value)
	}
}

func (d *simulation) path(name string) string { return filepath.Join(d.dir, name) }

// arm sets the rule that says which driver calls of a process fail from now on. The new rule replaces the old rule.
func (d *simulation) arm(pid int, rule string) error {
	d.rules++ // with the same number, the driver would continue the old count
	text := fmt.Sprintf("# %d\n%s pid=%d\n", d.rules, rule, pid)
	if err := os.WriteFile(d.path("faults"), nil, 0o600); err != nil {
		return err
	}
	return d.control(text)
}

// disarm removes the rule and lists the calls that failed.
func (d *simulation) disarm() ([]string, error) {
	if err := d.control(""); err != nil {
		return nil, err
	}
	return d.failed()
}

// failed lists the calls that have failed since the last call of arm.
func (d *simulation) failed() ([]string, error) {
	log, err := os.ReadFile(d.path("faults"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // nothing was armed yet
	}
	var calls []string
	for line := range strings.Lines(string(log)) {
		calls = append(calls, strings.Fields(line)[1])
	}
	return calls, err
}

// control replaces the control file in one step, because the driver reads the file at each call.
func (d *simulation) control(text string) error {
	next := d.path("control.next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, d.path("control"))
}

// misuse returns the reports of the detector since the last call of misuse. It leaves out the reports that contain
// one of the texts in meant.
func (d *simulation) misuse(meant []string) (reports []string) {
	text, err := os.ReadFile(d.path("misuse"))
	if err != nil {
		return nil
	}
	_ = os.Remove(d.path("misuse"))
	for line := range strings.Lines(string(text)) {
		if !slices.ContainsFunc(meant, func(text string) bool { return strings.Contains(line, text) }) {
			reports = append(reports, strings.TrimSpace(line))
		}
	}
	return reports
}

// tally has the number of calls by the name of the call, and the number of live objects by the sort of the object.
type tally struct{ calls, live map[string]int64 }

// tally reads the counts of a process from its file. The file has a header of 64 bytes, and then entries of 64 bytes. An
// entry begins with a name of 48 bytes.
func (d *simulation) tally(pid int) (tally, error) {
	t := tally{make(map[string]int64), make(map[string]int64)}
	file, err := os.ReadFile(d.path(fmt.Sprintf("%d.counts", pid)))
	if errors.Is(err, os.ErrNotExist) {
		return t, nil // the process has not loaded the driver
	}
	if err != nil {
		return t, err
	}
	for at := 64; at+64 <= len(file); at += 64 {
		name, _, _ := bytes.Cut(file[at:at+48], []byte{0})
		n := int64(binary.LittleEndian.Uint64(file[at+48:]))
		if object, ok := strings.CutPrefix(string(name), "live:"); ok {
			t.live[object] = n
		} else if n != 0 && string(name) != "*" {
			t.calls[string(name)] = n
		}
	}
	maps.DeleteFunc(t.live, func(_ string, n int64) bool { return n == 0 })
	return t, nil
}

// descriptors counts the open files of a process by the sort of the file.
func descriptors(pid int) (map[string]int, error) {
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	open := make(map[string]int)
	for _, e := range entries {
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil || strings.HasPrefix(target, dir) {
			continue // the descriptor with which this function reads the directory
		}
		kind, _, _ := strings.Cut(target, ":")
		open[kind]++
	}
	return open, nil
}
