package shmchannel

import (
	"bytes"
	"encoding/binary"
	"math"
	"slices"
	"sync/atomic"
)

// maxTypeName is the greatest length of an element type's name in bytes. Zeros fill up a shorter one.
const maxTypeName = 16

// Description says where a frame's memory is in its block, and how the elements of an array lie in this memory. This package does not check
// whether the memory lies within the block, and the elements within the memory.
type Description struct {
	Base   uint64 // where the frame's memory begins in its block, in bytes
	Offset uint64 // where the array begins in the frame's memory, in bytes
	DType  string
	Shape  []uint64
	// Strides are numbers of elements, not of bytes. If Strides is nil, the array is C-contiguous.
	Strides []int64
	// Layout is the encoded layout of a frame of several arrays. It is empty for a frame of one array. This package does not decode it.
	Layout []byte

	by *Producer // [Producer.Describe] has made the description, and has given it this id
	id uint64
}

// Validate returns an error if the description does not fit into a record.
//
// Errors: [ErrInvalid].
func (d *Description) Validate() error {
	switch {
	case len(d.DType) == 0 || len(d.DType) > maxTypeName || !printable(d.DType):
		return invalid("the name of an element type must have 1 to %d printable ASCII characters, %q has not", maxTypeName, d.DType)
	case len(d.Shape) > MaxDims:
		return invalid("an array has at most %d dimensions, this one has %d", MaxDims, len(d.Shape))
	case d.Base > math.MaxInt64 || d.Offset > math.MaxInt64 || slices.ContainsFunc(d.Shape, func(n uint64) bool { return n > math.MaxInt64 }):
		return invalid("base %d, offset %d and shape %v: each number is at most 2^63-1", d.Base, d.Offset, d.Shape)
	case d.Strides != nil && len(d.Strides) != len(d.Shape):
		return invalid("%d strides for %d dimensions", len(d.Strides), len(d.Shape))
	case len(d.Layout) > LayoutBytes:
		return invalid("a layout of %d bytes: at most %d are possible", len(d.Layout), LayoutBytes)
	}
	return nil
}

func printable(text string) bool {
	for i := range len(text) {
		if text[i] <= ' ' || text[i] > '~' {
			return false
		}
	}
	return true
}

func (d *Description) equal(e *Description) bool {
	return d.Base == e.Base && d.Offset == e.Offset && d.DType == e.DType && slices.Equal(d.Shape, e.Shape) &&
		(d.Strides == nil) == (e.Strides == nil) && slices.Equal(d.Strides, e.Strides) && bytes.Equal(d.Layout, e.Layout)
}

func (d *Description) clone() Description {
	return Description{Base: d.Base, Offset: d.Offset, DType: d.DType, Shape: slices.Clone(d.Shape), Strides: slices.Clone(d.Strides),
		Layout: slices.Clone(d.Layout)}
}

// rawDescription is the layout of a description in a track.
type rawDescription struct {
	offset  atomic.Uint64
	counts  atomic.Uint64 // bits 0 to 15: number of dimensions; from bit 16 on: 1 if strides follow
	name    [2]atomic.Uint64
	shape   [MaxDims]atomic.Uint64
	strides [MaxDims]atomic.Uint64
	base    atomic.Uint64
	layout  atomic.Uint64 // number of bytes of the layout
	_       [2]uint64
}

// rawLayout is the part of a track that stores the layout of one frame.
type rawLayout [LayoutBytes / 8]atomic.Uint64

// store writes a valid description, and its layout into `layout`.
func (r *rawDescription) store(d *Description, layout *rawLayout) {
	put(&r.offset, d.Offset)
	counts := uint64(len(d.Shape))
	if d.Strides != nil {
		counts |= 1 << 16
	}
	put(&r.counts, counts)
	var name [maxTypeName]byte
	copy(name[:], d.DType)
	put(&r.name[0], binary.LittleEndian.Uint64(name[:]))
	put(&r.name[1], binary.LittleEndian.Uint64(name[8:]))
	for i, n := range d.Shape {
		put(&r.shape[i], n)
	}
	for i, n := range d.Strides {
		put(&r.strides[i], uint64(n))
	}
	put(&r.base, d.Base)
	put(&r.layout, uint64(len(d.Layout)))
	storeBytes(layout[:], d.Layout)
}

// load reads a description from shared memory. The producer may have written invalid values, so the caller must check the description
// with Validate.
func (r *rawDescription) load(layout *rawLayout) *Description {
	counts := r.counts.Load()
	dims := min(counts&0xffff, MaxDims+1) // MaxDims+1 stands for any greater number, and Validate rejects it
	d := &Description{Base: r.base.Load(), Offset: r.offset.Load(), Shape: make([]uint64, dims)}
	for i := range d.Shape[:min(dims, MaxDims)] {
		d.Shape[i] = r.shape[i].Load()
	}
	if counts>>16&0xffff != 0 {
		d.Strides = make([]int64, dims)
		for i := range d.Strides[:min(dims, MaxDims)] {
			d.Strides[i] = int64(r.strides[i].Load())
		}
	}
	var name [maxTypeName]byte
	binary.LittleEndian.PutUint64(name[:], r.name[0].Load())
	binary.LittleEndian.PutUint64(name[8:], r.name[1].Load())
	length := slices.Index(name[:], 0)
	if length < 0 {
		length = len(name)
	}
	if !slices.ContainsFunc(name[length:], func(b byte) bool { return b != 0 }) {
		d.DType = string(name[:length])
	}
	if n := min(r.layout.Load(), LayoutBytes+1); n > LayoutBytes {
		d.Layout = make([]byte, n) // Validate rejects it
	} else if n > 0 {
		d.Layout = loadBytes(nil, layout[:], int(n))
	}
	return d
}

// recent is how many descriptions a producer remembers, so that it can give equal descriptions the same id.
const recent = 16

// descriptions assigns ids to the descriptions of a producer, and notes which description each slot of the track has.
type descriptions struct {
	stored []uint64 // the id of the description in each slot of the track
	known  [recent]struct {
		id uint64
		d  Description
	}
	last int
	next uint64
}

// Describe returns a copy of d for records of this producer. Describe gives the copy an id of its own. So if a producer publishes many frames
// with more than a few descriptions, it publishes faster with descriptions that Describe made.
//
// Errors: [ErrInvalid].
func (p *Producer) Describe(d Description) (*Description, error) {
	if err := d.Validate(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.descriptions.next++
	d = d.clone()
	d.by, d.id = p, p.descriptions.next
	return &d, nil
}

// id returns the id of the description d. If d is equal to one of the descriptions that the producer used recently, id returns the id of
// that description. Otherwise it returns a new id.
func (ds *descriptions) id(d *Description) uint64 {
	for i := range recent {
		at := (ds.last + i) % recent
		if k := &ds.known[at]; k.id != 0 && k.d.equal(d) {
			ds.last = at
			return k.id
		}
	}
	ds.last = (ds.last + recent - 1) % recent // overwrite the entry before the last used entry
	ds.next++
	k := &ds.known[ds.last]
	k.id, k.d = ds.next, d.clone()
	return k.id
}
