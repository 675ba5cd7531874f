package verify

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/mempool"
)

// legacyChecks returns checks of legacy handles, which have 64 bytes.
func legacyChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if kind != mempool.Legacy {
		return nil
	}
	checks := alone(each(handle, "file", consumers, handleInAFile), func(s *scene, consumer string) (role, error) {
		return s.withoutService(consumer), nil
	})
	return append(checks, alone(each(handle, "dead-owner", preferred(consumers), deadOwner), func(*scene, string) (role, error) {
		return role{consumer: goConsumer}, nil
	})...)
}

// withoutService returns the role of a worker whose socket path leads to no service.
func (s *scene) withoutService(consumer string) role {
	return role{consumer: consumer, flag: "--socket", value: filepath.Join(s.dir, "nobody")}
}

// legacyElements is the number of elements in the checks of handles.
const legacyElements = 1 << 18

// save writes a file that says how to open a published buffer. release ends the lease that keeps the buffer.
func (s *scene) save(ctx context.Context, name string) (path string, x mempool.Saved, release func() error, err error) {
	lease, err := s.client.TryExport(ctx, name)
	if err != nil {
		return "", x, nil, err
	}
	x = lease.Saved(name, s.socket)
	file, err := json.Marshal(x)
	if err == nil {
		path = filepath.Join(s.dir, fmt.Sprintf("%d.json", s.names.Add(1)))
		err = os.WriteFile(path, file, 0o600)
	}
	if err != nil {
		return "", x, nil, errors.Join(err, lease.Release())
	}
	return path, x, lease.Release, nil
}

// handleInAFile saves the handle of a buffer to a file. Then it starts a worker that does not use the service. The worker opens the
// handle from the file, compares the memory with a pattern, and changes the memory.
func handleInAFile(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("file")
	first, second := work.Affine(0.001, 42).Within(1e-4), work.Affine(1, 100)
	undo, err := s.publish(ctx, name, legacyElements, first)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	path, _, release, err := s.save(ctx, name)
	if err != nil {
		return err
	}
	w, err := s.fresh(s.withoutService(consumer))
	if err == nil {
		defer func() { err = errors.Join(err, w.stop()) }()
		_, err = w.check(ctx, work.Task{Task: "open-file", Path: path, Consumer: consumer, Pattern: first, Then: second, Elements: legacyElements})
	}
	if err == nil {
		_, err = w.check(ctx, work.Task{Task: "open-file", Path: path, Consumer: consumer, Pattern: second,
			Transform: &work.Transform{Scale: 2}, Elements: legacyElements})
	}
	if err = errors.Join(err, release()); err != nil {
		return err
	}
	return s.look(ctx, name, legacyElements, work.Affine(2, 200), nil)
}

// deadOwner lets a worker open a handle whose owner process was killed. The worker must report an error. After the error, the worker must
// still be able to use other memory.
func deadOwner(ctx context.Context, s *scene, consumer string) error {
	device, err := s.uuid()
	if err != nil {
		return err
	}
	owner, err := s.fresh(role{consumer: goConsumer})
	if err != nil {
		return err
	}
	defer owner.kill()
	pattern := work.Affine(1, 100)
	a, err := owner.do(ctx, work.Task{Task: "own-legacy", Device: device, Elements: legacyElements, Pattern: pattern})
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir, s.uniqueName("handle"))
	if err := os.WriteFile(path, a.Handle, 0o600); err != nil {
		return err
	}
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	t := work.Task{Task: "open-file", Path: path, Device: device, Consumer: consumer, Pattern: pattern, Elements: legacyElements}
	if _, err := w.check(ctx, t); err != nil {
		return fmt.Errorf("while the owner lives: %w", err)
	}
	owner.kill()
	_, err = w.do(ctx, t)
	failed, ok := errors.AsType[*work.Failure](err)
	switch {
	case err == nil:
		return errors.New("the handle of a dead process was opened")
	case !ok || failed.Code != "unavailable":
		return fmt.Errorf("the handle of a dead process should be unavailable: %w", err)
	}
	return roundTrip(ctx, s, consumer, 1000) // the worker must still work
}

// uuid returns the UUID of the GPU to use.
func (s *scene) uuid() (string, error) {
	d, err := mempool.FindDevice(s.options.Device)
	if err != nil {
		return "", err
	}
	u, err := d.UUID()
	return u.String(), err
}
