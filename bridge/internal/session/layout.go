package session

import (
	"context"
	"errors"
	"maps"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// A buffer whose layout nobody wrote would have the layout of an earlier buffer in its block.
var errNoArrays = typed.Errorf(mempool.ErrInvalid, "a Tensor with LayoutBytes and without Arrays, such as lists have, does not say which arrays there are: use the Tensor of a lease")

// WithLayout returns the description of a buffer for t, and the layout at the buffer's end; nil if t has one array.
//
// Errors: [mempool.ErrInvalid].
func WithLayout(t mempool.Tensor) (mempool.Tensor, []byte, error) {
	if err := t.Validate(); err != nil {
		return t, nil, err
	}
	if t.Arrays == nil {
		if t.LayoutBytes > 0 {
			return t, nil, errNoArrays
		}
		return t, nil, nil
	}
	layout, err := wire.AppendBufferLayout(nil, t.Metadata, convert.WireLayout(t.Arrays).Arrays)
	if err != nil {
		return t, nil, typed.Errorf(mempool.ErrInvalid, "%d arrays in one buffer, whose names, shapes and metadata are too long: %v: use several buffers, or shorter metadata", len(t.Arrays), err)
	}
	n := uint64(len(layout))
	t.Shape, t.LayoutBytes, t.Metadata = []uint64{t.Shape[0] - t.LayoutBytes + n}, n, maps.Clone(t.Metadata)
	return t, layout, t.Validate()
}

// WriteLayout writes the layout of a new buffer for t. Others may read it as soon as the buffer is published, also if work on the content
// goes on.
func (l *Lease) WriteLayout(ctx context.Context, t mempool.Tensor, layout []byte) error {
	if layout == nil {
		return nil
	}
	l.describe(t)
	n := uint64(len(layout))
	off := l.Info().Tensor.Shape[0] - n
	return l.With(ctx, off, n, true, func(m mempool.Memory) error {
		return errors.Join(m.CopyFrom(off, layout), m.Synchronize())
	})
}

// ReadLayout reads from the memory which arrays the buffer has. It does not wait for the content.
//
// Errors: [mempool.ErrContentFailed] if the layout is not valid.
func (l *Lease) ReadLayout(ctx context.Context) error {
	info := *l.Info()
	t := &info.Tensor
	if t.LayoutBytes == 0 {
		return nil
	}
	if err := t.Validate(); err != nil {
		return err
	}
	layout := make([]byte, t.LayoutBytes)
	err := l.With(ctx, 0, 0, false, func(m mempool.Memory) error { return m.CopyTo(layout, t.Shape[0]-t.LayoutBytes) })
	if err != nil {
		return err
	}
	metadata, arrays, err := wire.DecodeBufferLayout(layout)
	if err == nil {
		t.Metadata = metadata
		t.Arrays = convert.Arrays(&wire.Layout{Arrays: arrays})
		err = t.Validate()
	}
	if err != nil {
		return typed.Errorf(mempool.ErrContentFailed, "buffer %d has no valid layout, which says what arrays it has: %v", info.Buffer, err)
	}
	l.describe(*t)
	return nil
}

// describe notes which arrays and metadata the buffer has.
func (l *Lease) describe(t mempool.Tensor) {
	l.mu.Lock() // the client may close meanwhile, and end the lease
	defer l.mu.Unlock()
	info := *l.info
	info.Tensor.Arrays, info.Tensor.Metadata = t.Arrays, t.Metadata
	l.info = &info
}
