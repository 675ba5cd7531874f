package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// maskedElements is the number of elements in the checks of mappings. The elements have 1 MiB in total, and element i is (2·i + 1337) XOR
// 0xDEADBEEF.
const maskedElements = 262144

// masked returns the pattern (2·i + 1337) XOR 0xDEADBEEF, from element `first` on.
func masked(first uint32) *work.Pattern { return work.Masked(2, 1337+2*first, 0xDEADBEEF) }

// vmmChecks returns checks of kinds of memory that can be mapped read-only.
func vmmChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if kind != mempool.VMM {
		return nil
	}
	checks := each(mapping, "exchange", consumers, exchange)
	checks = append(checks, each(mapping, "mapped-twice", consumers[:1], mappedTwice)...)
	checks = append(checks, each(mapping, "read-only", preferred(consumers), readOnly)...)
	return append(checks, alone(each(mapping, "kernel-fault", consumers[:1], kernelFault), own)...)
}

// exchange lets a worker verify all elements.
func exchange(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("exchange")
	undo, err := s.publish(ctx, name, maskedElements, masked(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	_, err = w.check(ctx, work.Task{Name: name, Pattern: masked(0), Consumer: consumer, Elements: maskedElements})
	return err
}

// subRanges returns checks that publish parts of a buffer by their offset.
func subRanges(_ mempool.Kind, consumers []string, _ Options) []check {
	return each(mapping, "sub-ranges", preferred(consumers), func(ctx context.Context, s *scene, consumer string) (err error) {
		name := s.uniqueName("sub-ranges")
		undo, err := s.publish(ctx, name, maskedElements, masked(0))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, undo()) }()
		w, err := s.worker(consumer)
		if err != nil {
			return err
		}
		for _, part := range []struct{ first, n uint64 }{{0, 1}, {1, 65535}, {100003, 150000}, {maskedElements - 1, 1}} {
			l, err := s.client.Get(ctx, name, bridge.LeaseOptions{Write: true}) // Get waits until the worker's lease has ended
			if err != nil {
				return err
			}
			t := mempool.Tensor{DType: mempool.Uint32, Shape: []uint64{part.n}, ByteOffset: part.first * work.ElementBytes}
			err = l.Publish(ctx, mempool.Publication{Name: name, Tensor: &t, Replace: true})
			if err = errors.Join(err, l.Release(false)); err != nil {
				return err
			}
			if _, err := w.check(ctx, work.Task{Name: name, Pattern: masked(uint32(part.first)), Consumer: consumer, Elements: part.n}); err != nil {
				return fmt.Errorf("%d elements from %d on: %w", part.n, part.first, err)
			}
		}
		return nil
	})
}

// mappedTwice lets a worker map memory at two addresses, write through one address and read through the other address.
func mappedTwice(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("mapped-twice")
	undo, err := s.publish(ctx, name, maskedElements, work.Affine(0, 0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	a, err := w.check(ctx, work.Task{Task: "twice", Name: name, Pattern: masked(0), Elements: maskedElements})
	if err != nil {
		return err
	}
	if len(a.Pointers) != 2 || a.Pointers[0] == a.Pointers[1] {
		return fmt.Errorf("two mappings should lie at two addresses, these at %#x", a.Pointers)
	}
	return s.look(ctx, name, maskedElements, masked(0), nil)
}

// readOnly lets a worker try to write memory of a read lease: through the library, and directly through the driver.
func readOnly(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("read-only")
	undo, err := s.publish(ctx, name, maskedElements, masked(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.worker(consumer)
	if err != nil {
		return err
	}
	a, err := w.check(ctx, work.Task{Task: "forbidden", Name: name, Pattern: masked(0), Consumer: consumer, Elements: maskedElements})
	switch {
	case err != nil:
		return err
	case a.API == nil:
		return errors.New("the library let a read lease be written")
	case a.API.Code != "invalid":
		return fmt.Errorf("writing a read lease should be an invalid argument, and was %w", a.API)
	case a.Driver == nil:
		return errors.New("the driver let memory that is mapped read-only be written")
	}
	return s.look(ctx, name, maskedElements, masked(0), nil)
}

// kernelFault lets a kernel of a worker write read-only memory. This is a fault: afterwards, the worker cannot use the GPU. All other
// processes must still be able to use the GPU.
func kernelFault(ctx context.Context, s *scene, consumer string) (err error) {
	name := s.uniqueName("kernel-fault")
	undo, err := s.publish(ctx, name, maskedElements, masked(0))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	bystander, err := s.worker(consumer)
	if err != nil {
		return err
	}
	if _, err := bystander.check(ctx, work.Task{Name: name, Pattern: masked(0), Consumer: consumer}); err != nil {
		return err
	}
	culprit, err := s.fresh(role{consumer: consumer})
	if err != nil {
		return err
	}
	defer culprit.kill()
	a, err := culprit.do(ctx, work.Task{Task: "fault", Name: name, Timeout: 60})
	if err != nil {
		return err
	}
	if a.Driver == nil {
		return errors.New("a kernel wrote memory that is mapped read-only")
	}
	if a.Driver.Type != cuda.ErrIllegalAddress.Name() {
		return fmt.Errorf("the kernel should have met %s, and met %w", cuda.ErrIllegalAddress.Name(), a.Driver)
	}
	culprit.kill()
	if _, err := bystander.check(ctx, work.Task{Name: name, Pattern: masked(0), Consumer: consumer}); err != nil {
		return fmt.Errorf("another process, after the fault: %w", err)
	}
	return s.look(ctx, name, maskedElements, masked(0), nil)
}
