package verify

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
	"github.com/poolbridge/poolbridge/mempool"
)

// peerRead is a task of workers in Python: one of the project's own kernels compares a buffer on another GPU, because the libraries differ
// in how they treat memory of another GPU.
type peerRead struct {
	Name    string   `json:"name"`
	Expect  *Pattern `json:"expect"`
	Device  string   `json:"device"`
	Kernels string   `json:"kernels"`
}

// other returns the GPU of the memory and another GPU, with their UUIDs.
func (s *scene) other() (own, other cuda.Device, uuids [2]string, err error) {
	if own, err = mempool.FindDevice(s.options.Device); err != nil {
		return own, other, uuids, err
	}
	all, err := cuda.Devices()
	if err != nil {
		return own, other, uuids, err
	}
	err = skipf("this process sees only one GPU")
	for _, d := range all {
		if d != own {
			other, err = d, nil
			break
		}
	}
	for i, d := range []cuda.Device{own, other} {
		if err == nil {
			var u cuda.UUID
			u, err = d.UUID()
			uuids[i] = u.String()
		}
	}
	return own, other, uuids, err
}

// kernels writes the pattern kernels to a file for workers in Python, and returns the path of the file.
func (s *scene) kernels() (path string, err error) {
	path = filepath.Join(s.dir, s.uniqueName("kernels"))
	return path, os.WriteFile(path, pattern.PTX(), 0o600)
}

// peer lets a kernel of one GPU compare memory of another GPU; in Go, another kernel then writes it. If the other GPU cannot access the
// memory, the worker must get a clear error.
func peer(ctx context.Context, s *scene) error {
	own, other, uuids, err := s.other()
	if err != nil {
		return err
	}
	reaches, err := other.CanAccessPeer(own)
	if err != nil {
		return err
	}
	first, second := masked(megabyte, 0), masked(megabyte, 1)
	return s.published(ctx, first, func(name string) error {
		a := assignment{"check", check{name, first, second}}
		if s.consumer != goConsumer {
			kernels, err := s.kernels()
			if err != nil {
				return err
			}
			a = assignment{"peerRead", peerRead{name, first, uuids[1], kernels}}
		}
		err := s.alone(nil, func(w *worker) error {
			err := w.exchange(ctx, a, nil)
			if reaches || s.kind == mempool.Pinned {
				return err
			}
			return refused(err, uuids[:])
		}, "--device", uuids[1])
		s.note = fmt.Sprintf("worked on GPU %d with memory of GPU %d", other.Ordinal(), own.Ordinal())
		if err != nil || s.consumer != goConsumer || !reaches && s.kind != mempool.Pinned {
			return err
		}
		return s.compareBuffer(ctx, name, second, nil)
	})
}

// refused returns an error unless err says that a GPU is unavailable and names the GPUs.
func refused(err error, uuids []string) error {
	switch {
	case err == nil:
		return errors.New("memory that cannot be reached was used")
	case !hasCode(err, "unavailable"):
		return fmt.Errorf("a GPU that cannot be reached should be unavailable: %w", err)
	}
	for _, u := range uuids {
		if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(u)) {
			return fmt.Errorf("the error should name the GPU %s: %w", u, err)
		}
	}
	return nil
}
