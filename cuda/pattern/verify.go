package pattern

import (
	"encoding/binary"
	"errors"

	"github.com/poolbridge/poolbridge/cuda"
)

// Verify compares n elements at ptr with the pattern, and returns the result. It queues the comparison in the stream, and waits until the stream
// has done it.
//
// Errors: the same as for [Kernels.Fill], and errors of earlier work in the stream. If elements are wrong, Verify does not return an error: the
// report has the wrong elements.
func (k *Kernels) Verify(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, p Pattern) (Report, error) {
	v, err := k.StartVerify(s, ptr, n, p)
	if err != nil {
		return Report{Pattern: p, Elements: n}, err
	}
	return v.Wait()
}

// Verification is a queued comparison.
type Verification struct {
	kernels *Kernels
	stream  *cuda.Stream
	slot    uint64
	report  Report
}

// StartVerify queues a comparison of n elements at ptr with the pattern. The caller must call the method Wait of the result once.
//
// Errors: the same as for [Kernels.Fill].
func (k *Kernels) StartVerify(s *cuda.Stream, ptr cuda.DevicePtr, n uint64, p Pattern) (*Verification, error) {
	v := &Verification{kernels: k, stream: k.stream(s), report: Report{Pattern: p, Elements: n}}
	if err := k.admit("Kernels.Verify", ptr, n, p); err != nil || n == 0 {
		return v, err
	}
	slot, open := <-k.results.free
	if !open {
		return nil, &cuda.Error{Op: "pattern.Kernels.Verify", Device: k.ctx.Device().Ordinal(), Result: cuda.ErrClosed}
	}
	v.slot = slot
	at := k.results.device + cuda.DevicePtr(slot)
	err := k.results.clear(v.stream, at)
	if err == nil {
		err = k.launch(v.stream, verifyPrefix, ptr, n, p, at)
	}
	if err == nil {
		err = v.stream.CopyDtoHAsync(k.results.host, slot, at, resultBytes)
	}
	if err != nil {
		_, failed := v.Wait() // waits for the stream, because another verification gets the slot next
		return nil, errors.Join(err, failed)
	}
	return v, nil
}

// Wait waits until the stream of the comparison has done all its work, and returns the result of the comparison.
//
// Errors: the errors of the stream's work.
func (v *Verification) Wait() (Report, error) {
	if v.report.Elements == 0 {
		return v.report, nil
	}
	defer func() { v.kernels.results.free <- v.slot }()
	if err := v.stream.Synchronize(); err != nil {
		return v.report, err
	}
	v.kernels.results.read(v.slot, &v.report)
	return v.report, nil
}

// These constants describe the type "struct result" in kernels.cu. It has a count and a lock, and then an index and a value for each mismatch.
const (
	resultHead  = 16
	resultBytes = resultHead + 16*maxMismatches
	resultSlot  = 256 // bytes from one result to the next
	resultSlots = 16  // number of verifications at the same time
)

// results is memory for the results of verifications. The kernels write the results to device memory, and StartVerify queues the copies of the
// results to host memory.
type results struct {
	ctx    *cuda.Context
	device cuda.DevicePtr
	host   *cuda.Pinned
	free   chan uint64 // offsets of free slots
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

// clear queues work that writes the values that a kernel expects: a count of 0, and the greatest value as every index.
func (r *results) clear(s *cuda.Stream, at cuda.DevicePtr) error {
	if err := s.Memset8(at, 0, resultHead); err != nil {
		return err
	}
	return s.Memset8(at+resultHead, 0xff, resultBytes-resultHead)
}

// read copies a slot's result into a report.
func (r *results) read(slot uint64, to *Report) {
	b := r.host.Bytes()[slot:][:resultBytes]
	to.Count = binary.NativeEndian.Uint64(b)
	for b = b[resultHead:]; len(b) > 0 && uint64(len(to.First)) < to.Count; b = b[16:] {
		to.First = append(to.First, Mismatch{binary.NativeEndian.Uint64(b), binary.NativeEndian.Uint64(b[8:])})
	}
}
