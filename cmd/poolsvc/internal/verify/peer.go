package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/work"
	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool"
)

// peerChecks returns checks with several GPUs, or with processes that see different GPUs.
func peerChecks(kind mempool.Kind, consumers []string, _ Options) []check {
	if !onGPU(kind) {
		return nil
	}
	checks := alone(each(transfer, "peer", preferred(consumers), peer), (*scene).abroad)
	checks = append(checks, alone(each(transfer, "renumbered", preferred(consumers), renumbered), (*scene).inOtherOrder)...)
	return append(checks, alone(each(transfer, "invisible", preferred(consumers), invisible), (*scene).withoutTheGPU)...)
}

// other returns the GPU of the memory and another GPU.
func (s *scene) other() (own, other cuda.Device, err error) {
	own, err = mempool.FindDevice(s.options.Device)
	if err != nil {
		return own, other, err
	}
	all, err := cuda.Devices()
	if err != nil {
		return own, other, err
	}
	for _, d := range all {
		if d != own {
			return own, d, nil
		}
	}
	return own, other, skipf("this process sees only one GPU")
}

func uuids(devices ...cuda.Device) (list []string, err error) {
	for _, d := range devices {
		u, err := d.UUID()
		if err != nil {
			return nil, err
		}
		list = append(list, u.String())
	}
	return list, nil
}

// peer lets a worker use memory of one GPU in a kernel that runs on another GPU. The kernel compares the memory with a pattern and then
// writes into the memory. If the other GPU cannot access the memory, the worker must get a clear error.
func peer(ctx context.Context, s *scene, consumer string) (err error) {
	own, other, err := s.other()
	if err != nil {
		return err
	}
	names, err := uuids(own, other)
	if err != nil {
		return err
	}
	reaches, err := other.CanAccessPeer(own)
	if err != nil {
		return err
	}
	t := work.Task{Name: s.uniqueName("peer"), Pattern: s.options.written(), Then: s.options.answered(), Elements: s.options.Elements}
	if consumer != goConsumer { // the libraries differ in how they treat memory of another GPU, so the project's own kernel compares it
		t = work.Task{Task: "peer", Name: t.Name, Pattern: masked(0), Elements: maskedElements, Device: names[1]}
		if t.Path, err = s.kernels(); err != nil {
			return err
		}
	}
	undo, err := s.publish(ctx, t.Name, t.Elements, t.Pattern)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.fresh(role{consumer: consumer, flag: "--device", value: names[1]})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	_, err = w.check(ctx, t)
	if !reaches && s.kind != mempool.Pinned {
		return refused(err, names...)
	}
	if err != nil {
		return err
	}
	s.note = fmt.Sprintf("worked on GPU %d with memory of GPU %d", other.Ordinal(), own.Ordinal())
	if t.Then == nil {
		return nil
	}
	return s.look(ctx, t.Name, t.Elements, t.Then, nil)
}

// abroad returns the role of a worker that works on another GPU than the GPU of the memory.
func (s *scene) abroad(consumer string) (role, error) {
	_, other, err := s.other()
	if err != nil {
		return role{}, err
	}
	u, err := other.UUID()
	return role{consumer: consumer, flag: "--device", value: u.String()}, err
}

// seeing returns the role of a worker that sees only the GPUs that `visible` names.
func seeing(consumer, visible string) role {
	return role{consumer: consumer, env: "CUDA_VISIBLE_DEVICES=" + visible}
}

// inOtherOrder returns the role of a worker that sees the GPUs in another order, so with other ordinals.
func (s *scene) inOtherOrder(consumer string) (role, error) {
	own, other, err := s.other()
	if err != nil {
		return role{}, err
	}
	order, err := uuids(other, own)
	if err != nil {
		return role{}, err
	}
	if own.Ordinal() != 0 {
		order[0], order[1] = order[1], order[0]
	}
	return seeing(consumer, order[0]+","+order[1]), nil
}

// withoutTheGPU returns the role of a worker that does not see the GPU of the memory. If there is another GPU, the
// worker sees only the other GPU.
func (s *scene) withoutTheGPU(consumer string) (role, error) {
	_, other, err := s.other()
	if _, alone := errors.AsType[*skip](err); alone {
		return seeing(consumer, ""), nil
	}
	if err != nil {
		return role{}, err
	}
	u, err := other.UUID()
	return seeing(consumer, u.String()), err
}

// renumbered checks that a worker finds the GPU of the memory by its UUID although the worker sees other ordinals.
func renumbered(ctx context.Context, s *scene, consumer string) error {
	r, err := s.inOtherOrder(consumer)
	if err != nil {
		return err
	}
	return s.asSeen(ctx, r, func(err error) error { return err })
}

// invisible checks that a worker gets a clear error if it does not see the GPU of the memory.
func invisible(ctx context.Context, s *scene, consumer string) error {
	r, err := s.withoutTheGPU(consumer)
	if err != nil {
		return err
	}
	u, err := s.uuid()
	if err != nil {
		return err
	}
	names := []string{u}
	if r == seeing(consumer, "") {
		names = nil // the worker sees no GPU, so the error names no GPU
	}
	return s.asSeen(ctx, r, func(err error) error { return refused(err, names...) })
}

// asSeen lets a worker with a role compare a buffer, and passes the error to the function `judge`.
func (s *scene) asSeen(ctx context.Context, r role, judge func(error) error) (err error) {
	name := s.uniqueName("as-seen")
	undo, err := s.publish(ctx, name, s.options.Elements, s.options.written())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, undo()) }()
	w, err := s.fresh(r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.stop()) }()
	_, err = w.check(ctx, work.Task{Name: name, Pattern: s.options.written(), Consumer: r.consumer, Elements: s.options.Elements})
	return judge(err)
}

// refused returns an error unless err says that a GPU is unavailable and names the GPUs whose UUIDs are in `uuids`.
func refused(err error, uuids ...string) error {
	failed, ok := errors.AsType[*work.Failure](err)
	switch {
	case err == nil:
		return errors.New("memory that cannot be reached was used")
	case !ok || failed.Code != "unavailable":
		return fmt.Errorf("a GPU that cannot be reached should be unavailable: %w", err)
	}
	for _, u := range uuids {
		if !containsFold(failed.Message, u) {
			return fmt.Errorf("the error should name the GPU %s: %w", u, err)
		}
	}
	return nil
}
