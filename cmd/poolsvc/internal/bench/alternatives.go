package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"

	"github.com/poolbridge/poolbridge/mempool"
)

// measuredInPython are the workloads that the bench measures also with other systems than poolbridge.
var measuredInPython = []string{"transfer", "stream"}

// alternativeSizes are the buffer sizes with which the bench measures other systems, if Options.Sizes is empty. There are only a few sizes,
// because the bench starts a new Python process for each size.
var alternativeSizes = []uint64{4 << 10, 1 << 20, 64 << 20}

// alternatives measures the other systems that a user can use instead of poolbridge. It runs a Python program, because the bench measures
// these systems with transfers between two Python processes.
func alternatives(ctx context.Context, s *scene) error {
	args := []string{"--depth", strconv.Itoa(streamCapacity)} // the other systems may have as many frames at the same time as a channel
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
	return s.runPython(ctx, args...)
}

// pythonStreams measures workload (g): streams from one Python process to other Python processes, with the service in a separate process.
func pythonStreams(ctx context.Context, s *scene) error {
	if s.kind != mempool.Host && s.kind != mempool.Device {
		return nil
	}
	return s.withService(ctx, func(svc *service) error {
		args := []string{"--only", "python-stream", "--socket", svc.socket}
		for _, n := range streamConsumers {
			if n <= s.MaxConsumers {
				args = append(args, "--consumers", strconv.Itoa(n))
			}
		}
		if !s.Alternatives {
			args = append(args, "--alone")
		}
		return s.runPython(ctx, args...)
	})
}

// engines measures workload (h): transfers of arrays between processes of Ray, and between processes of Dask. It measures these transfers
// with poolbridge and without poolbridge. The Python program that measures them starts all services that it needs.
func engines(ctx context.Context, s *scene) error {
	if s.kind != mempool.Host {
		return nil
	}
	args := []string{"--only", "engines"}
	for _, bytes := range s.Sizes {
		args = append(args, "--bytes", strconv.FormatUint(bytes, 10))
	}
	return s.runPython(ctx, args...)
}

// runPython runs a measurement in Python, and adds its results to the report.
func (s *scene) runPython(ctx context.Context, args ...string) error {
	args = append([]string{"-m", "poolbridge.bench", "--json", "--kind", string(s.kind), "--seconds", fmt.Sprint(s.Time.Seconds())}, args...)
	cmd := exec.CommandContext(ctx, s.Python, args...)
	cmd.Env = append(os.Environ(), "POOLBRIDGE_POOLSVC="+s.Poolsvc) // the program that the measurement runs if it starts a service
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = s.readResults(json.NewDecoder(out))
	if err = errors.Join(err, cmd.Wait()); err != nil {
		return fmt.Errorf("measuring in Python: %w: %s", err, stderr.String())
	}
	return nil
}

func (s *scene) readResults(d *json.Decoder) error {
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
