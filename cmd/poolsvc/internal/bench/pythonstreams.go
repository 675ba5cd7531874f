package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"

	"github.com/poolbridge/poolbridge/mempool"
)

// pythonStreams measures workload (g): streams from one Python process to other Python processes, with the service in a separate process.
func pythonStreams(ctx context.Context, s *scene) error {
	if s.kind != mempool.Host && s.kind != mempool.Device {
		return nil
	}
	return s.withService(ctx, func(svc *service) error {
		args := []string{"--socket", svc.Socket, "--kind", string(s.kind), "--seconds", fmt.Sprint(s.Time.Seconds())}
		for _, n := range streamConsumers {
			if n <= s.MaxConsumers {
				args = append(args, "--consumers", strconv.Itoa(n))
			}
		}
		return s.runPython(ctx, args...)
	})
}

// runPython runs a measurement in Python, and adds its results to the report.
func (s *scene) runPython(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, s.Python, append([]string{"-m", "poolbridge.bench"}, args...)...)
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
