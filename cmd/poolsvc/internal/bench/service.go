package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/child"
)

// service is a poolsvc process that the bench measures.
type service struct{ *child.Service }

// rss returns the service's physical memory in bytes, without the pages of the pools.
func (s *service) rss() (uint64, error) { return rssOf(s.PID()) }

// rssOf returns the physical memory of a process in bytes, without the memory that the process shares by memfd: the
// pages of the pools.
func rssOf(pid int) (sum uint64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		key, value, _ := strings.Cut(line, ":")
		if key != "RssAnon" && key != "RssFile" {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("/proc has an unexpected line for the memory of process %d: %q", pid, line)
		}
		sum += kib << 10
	}
	return sum, nil
}

// cpu returns the CPU time of all threads of the service together.
func (s *service) cpu() (time.Duration, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", s.PID()))
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, path := range threads {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // this thread has ended
		}
		fields := strings.Fields(string(text))
		if len(fields) == 0 {
			return 0, fmt.Errorf("%s is empty", path)
		}
		ns, err := strconv.ParseInt(fields[0], 10, 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", path, err)
		}
		sum += time.Duration(ns)
	}
	return sum, nil
}
