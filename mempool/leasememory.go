package mempool

// This file is how the service's own process reaches the memory of its leases. Bridge clients have the same methods.

// Memory is the memory of the buffer's block, for use in the service's own process while the lease lasts. It checks
// nothing; the methods of the lease do.
//
// Errors: [ErrReleased].
func (l *Lease) Memory() (Memory, error) {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	if l.ended {
		return nil, l.released()
	}
	return l.buffer.block.mem, nil
}

// with calls f with the memory of the buffer's block, which serves nobody else meanwhile even if the lease ends.
func (l *Lease) with(off, n uint64, write bool, f func(Memory) error) error {
	b := l.buffer.block
	if err := l.hold(off, n, write); err != nil {
		return err
	}
	defer func() {
		svc := l.session.svc
		svc.mu.Lock()
		defer svc.unlock()
		b.pool.unhold(b)
	}()
	return f(b.mem)
}

// hold holds the block if n bytes at off may be touched now.
func (l *Lease) hold(off, n uint64, write bool) error {
	svc := l.session.svc
	svc.mu.Lock()
	defer svc.mu.Unlock()
	size := l.buffer.bytes
	switch {
	case l.ended:
		return l.released()
	case write && !l.write:
		return situation(ErrInvalid, "lease %d was granted to read; ask for a write lease", l.id)
	case off > size || n > size-off:
		return situation(ErrInvalid, "%d bytes at %d lie outside a buffer of %d", n, off, size)
	}
	l.buffer.block.holds++
	return nil
}

// CopyFrom copies src to the buffer at off bytes.
//
// Errors: [ErrReleased], [ErrInvalid] if src does not fit or the lease was granted to read.
func (l *Lease) CopyFrom(off uint64, src []byte) error {
	return l.with(off, uint64(len(src)), true, func(m Memory) error { return m.CopyFrom(off, src) })
}

// CopyTo fills dst from the buffer at off bytes.
//
// Errors: [ErrReleased], [ErrInvalid] if the buffer has not that many bytes.
func (l *Lease) CopyTo(dst []byte, off uint64) error {
	return l.with(off, uint64(len(dst)), false, func(m Memory) error { return m.CopyTo(dst, off) })
}

// Fill sets n bytes at off to b.
//
// Errors: [ErrReleased], [ErrInvalid].
func (l *Lease) Fill(off, n uint64, b byte) error {
	return l.with(off, n, true, func(m Memory) error { return m.Fill(off, n, b) })
}

// Bytes is the buffer as the CPU sees it, nil where it cannot reach it. It must not be touched once the lease has ended,
// nor written through a read lease.
//
// Errors: [ErrReleased].
func (l *Lease) Bytes() ([]byte, error) {
	m, err := l.Memory()
	if err != nil {
		return nil, err
	}
	b := m.Bytes()
	if b == nil {
		return nil, nil
	}
	return b[:l.buffer.bytes:l.buffer.bytes], nil
}

// Pointer is the buffer's address: a CUDA device pointer for memory on a GPU. It must not be used once the lease has
// ended.
//
// Errors: [ErrReleased].
func (l *Lease) Pointer() (uintptr, error) {
	m, err := l.Memory()
	if err != nil {
		return 0, err
	}
	return m.Pointer(), nil
}

// Tensor describes what the buffer holds.
func (l *Lease) Tensor() Tensor { return l.Info().Tensor }
