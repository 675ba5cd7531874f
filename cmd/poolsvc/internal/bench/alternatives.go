package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
)

// measuredInPython are the workloads that the alternatives are measured with.
var measuredInPython = []string{"hand-over", "stream"}

// alternativeSizes are enough of them: for each, a process is started.
var alternativeSizes = []uint64{4 << 10, 1 << 20, 64 << 20}

// alternatives measures what users have without poolbridge: between two Python processes, so in Python.
func alternatives(ctx context.Context, s *scene) error {
	args := []string{"-m", "poolbridge.bench", "--json", "--kind", string(s.kind), "--seconds", fmt.Sprint(s.Time.Seconds()),
		"--depth", strconv.Itoa(streamCapacity)} // as many under way as in a channel
	sizes := s.Sizes
	if len(sizes) == 0 {
		sizes = alternativeSizes
	}
	for _, bytes := range sizes {
		args = append(args, "--bytes", strconv.FormatUint(bytes, 10))
	}
	wanted := slices.DeleteFunc(slices.Clone(measuredInPython), func(name string) bool { return !s.wants(name) })
	if len(wanted) == 0 {
		return nil
	}
	for _, name := range wanted {
		args = append(args, "--only", name)
	}
	cmd := exec.CommandContext(ctx, s.Python, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = s.readAlternatives(json.NewDecoder(out))
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("the alternatives: %w: %s", err, stderr.String())
	}
	return nil
}

func (s *scene) readAlternatives(d *json.Decoder) error {
	for {
		var line struct {
			Result
			Skipped *Skipped `json:"skipped"`
		}
		if err := d.Decode(&line); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if line.Skipped != nil {
			s.skip(line.Skipped.Workload, line.Skipped.System, line.Skipped.Reason)
			continue
		}
		s.addResult(line.Result)
	}
}
