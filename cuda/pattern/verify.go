package pattern

import (
	"encoding/binary"
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
)

// Verify compares n elements at ptr with the pattern, in the order of the stream, and waits for the answer.
//
// Errors: as Fill, and those of earlier work; that elements are wrong is in the report.
func (k *Kernels) Verify(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, p Pattern) (Report, error) {
	r := Report{Pattern: p, Elements: n}
	if err := k.admit("Kernels.Verify", ptr, n, p); err != nil || n == 0 {
		return r, err
	}
	s = k.stream(s)
	slot, open := <-k.results.free
	if !open {
		return r, &cuda.Error{Op: "pattern.Kernels.Verify", Device: k.ctx.Device().Ordinal(), Result: cuda.ErrClosed}
	}
	defer func() { k.results.free <- slot }()
	at := k.results.device + cuda.DevicePtr(slot)
	err := k.results.clear(s, at)
	if err == nil {
		err = k.launch(s, verifyPrefix, ptr, n, p, at)
	}
	if err == nil {
		err = s.CopyDtoHAsync(k.results.host, slot, at, resultBytes)
	}
	// Even after an error: the slot is somebody else's next.
	if err = errors.Join(err, s.Synchronize()); err != nil {
		return r, err
	}
	k.results.read(slot, &r)
	return r, nil
}

// A result is the kernels' struct of that name: a count, a lock, and an index and a value for each mismatch.
const (
	resultHead  = 16
	resultBytes = resultHead + 16*maxMismatches
	resultSlot  = 256 // bytes from one to the next
	resultSlots = 16  // verifications at once
)

// results is memory for what verifications find: on the device, where they find it, and on the host.
type results struct {
	ctx    *cuda.Context
	device cuda.DevicePtr
	host   *cuda.Pinned
	free   chan uint64 // offsets
}

func newResults(ctx *cuda.Context) (*results, error) {
	r := &results{ctx: ctx, free: make(chan uint64, resultSlots)}
	var err error
	if r.device, err = ctx.Malloc(resultSlots * resultSlot); err != nil {
		return nil, err
	}
	if r.host, err = ctx.NewPinned(resultSlots * resultSlot); err != nil {
		return nil, errors.Join(err, ctx.MFree(r.device))
	}
	for i := range uint64(resultSlots) {
		r.free <- i * resultSlot
	}
	return r, nil
}

// close waits until no slot is in use.
func (r *results) close() error {
	for range resultSlots {
		<-r.free
	}
	close(r.free)
	return errors.Join(r.host.Close(), r.ctx.MFree(r.device))
}

// clear queues what a kernel expects: no count, and indices above every other.
func (r *results) clear(s *cuda.Stream, at cuda.DevicePtr) error {
	if err := s.Memset8(at, 0, resultHead); err != nil {
		return err
	}
	return s.Memset8(at+resultHead, 0xff, resultBytes-resultHead)
}

// read takes a slot's result into a report.
func (r *results) read(slot uint64, to *Report) {
	b := r.host.Bytes()[slot:][:resultBytes]
	to.Count = binary.NativeEndian.Uint64(b)
	for b = b[resultHead:]; len(b) > 0 && uint64(len(to.First)) < to.Count; b = b[16:] {
		to.First = append(to.First, Mismatch{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])})
	}
}
