package session

import (
	"context"
	"errors"
	"slices"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// This file makes leases of frames, which the service does not know.

// ErrCorruptRecord means that the record of a frame cannot be true.
var ErrCorruptRecord = errors.New("its record cannot be true")

// described is what leases of frames with the same block and description share.
type described struct {
	info   *mempool.Grant
	memory mempool.Memory
}

// maxDescribed is how many descriptions of frames in one block a session remembers.
const maxDescribed = 4096

// uncounted is the Grant of a lease that does not count yet as a lease on its block.
var uncounted mempool.Grant

// InitFrame makes l the lease of a frame, whose content is complete after the fences in `ready`. Until [Blocks.AdoptFrame] the lease has no memory.
func (l *Lease) InitFrame(s *Session, by Holder, ready []mempool.Fence) {
	l.session, l.by, l.frame, l.info = s, by, true, &uncounted
	if len(ready) > 0 {
		l.info = &mempool.Grant{Wait: ready}
		s.Timelines.Pin(ready)
		l.ordering().Begin(ready, true)
	}
}

// AdoptFrame gives the lease of a frame of a channel the frame's memory, which it maps if necessary.
func (b *Blocks) AdoptFrame(ctx context.Context, l *Lease, channel, pool uint64, came *shmchannel.Frame) error {
	if len(came.Event) > 0 {
		p, err := b.Pool(ctx, pool)
		if err != nil {
			return err
		}
		l.info = &mempool.Grant{Wait: l.info.Wait, Event: slices.Clone(came.Event)}
		l.ordering().Expect(l.info.Event, p.Info.Device.UUID)
	}
	known, err := b.hold(l, pool, came)
	if known || err != nil {
		return err
	}
	if err := b.session.Enter(); err != nil {
		return err
	}
	defer b.session.Leave()
	if err := b.mapBlock(ctx, channel, pool, came.Block); err != nil {
		return err
	}
	_, err = b.hold(l, pool, came)
	return errors.Join(err, b.Ended(came.Block)) // mapBlock has counted a lease, and Ended undoes this count
}

// hold makes a lease on a block that the session has mapped. known is false if the session has not mapped the block.
func (b *Blocks) hold(l *Lease, pool uint64, came *shmchannel.Frame) (known bool, err error) {
	b.lockAndApply()
	defer b.mu.Unlock()
	of := b.blocks[came.Block]
	switch {
	case b.closing:
		return false, ErrClientClosed
	case of == nil || of.mem == nil:
		return false, nil
	case of.pool != pool:
		return false, typed.Errorf(ErrCorruptRecord, "block %d is of pool %d, not of pool %d", came.Block, of.pool, pool)
	}
	d, ok := of.frames[came.Description]
	if !ok || d.info.Buffer != came.Buffer || d.info.Bytes != came.Bytes || d.info.Generation != of.use {
		if d, err = of.describeLocked(came); err != nil {
			return false, err
		}
	}
	info := d.info
	if len(l.info.Wait)+len(l.info.Event) > 0 {
		ordered := *info
		ordered.Wait, ordered.Event = l.info.Wait, l.info.Event
		info = &ordered
	}
	of.leases++
	l.mem, l.memory, l.info = of.mem, d.memory, info
	b.leases.add(l)
	return true, nil
}

// describeLocked makes what the leases of frames with this description share, and keeps it.
func (b *block) describeLocked(came *shmchannel.Frame) (described, error) {
	d := came.Description
	t := mempool.Tensor{DType: mempool.DType(d.DType), Shape: slices.Clone(d.Shape), Strides: slices.Clone(d.Strides), ByteOffset: d.Offset}
	var n uint64
	arrays, err := b.arraysLocked(d.Layout)
	if err == nil {
		t.Arrays = arrays
		n, err = t.Extent()
	}
	switch {
	case err != nil:
		return described{}, typed.Errorf(ErrCorruptRecord, "%s%v in memory of %d bytes: %v", t.DType, t.Shape, came.Bytes, err)
	case n > came.Bytes:
		return described{}, typed.Errorf(ErrCorruptRecord, "%s%v of %d bytes in memory of %d", t.DType, t.Shape, n, came.Bytes)
	case d.Base > b.bytes || came.Bytes > b.bytes-d.Base:
		return described{}, typed.Errorf(ErrCorruptRecord, "%d bytes at %d in a block of %d", came.Bytes, d.Base, b.bytes)
	}
	if b.view == nil {
		if b.view, err = b.mem.Memory(false); err != nil {
			return described{}, err
		}
	}
	if len(b.frames) >= maxDescribed {
		clear(b.frames)
	}
	if b.frames == nil {
		b.frames = make(map[*shmchannel.Description]described)
	}
	made := described{&mempool.Grant{Buffer: came.Buffer, Generation: b.use, Pool: b.pool, Block: came.Block, BlockBytes: b.bytes,
		Bytes: came.Bytes, Tensor: t}, mempool.PartOf(b.view, d.Base, came.Bytes)}
	b.frames[d] = made
	return made, nil
}

// maxLayouts is how many layouts of frames a block keeps.
const maxLayouts = 16

// arraysLocked returns the arrays of a frame of several arrays, and keeps them for frames with the same layout.
func (b *block) arraysLocked(layout []byte) ([]mempool.NamedTensor, error) {
	if len(layout) == 0 {
		return nil, nil
	}
	if arrays, ok := b.layouts[string(layout)]; ok {
		return arrays, nil
	}
	l, err := wire.DecodeLayout(layout)
	if err != nil {
		return nil, err
	}
	if b.layouts == nil || len(b.layouts) >= maxLayouts {
		clear(b.frames) // which have the arrays, too
		b.layouts = make(map[string][]mempool.NamedTensor)
	}
	arrays := convert.Arrays(l)
	b.layouts[string(layout)] = arrays
	return arrays, nil
}

// mapBlock maps the block of a frame. The mapping counts as a lease on the block until the caller calls Ended.
func (b *Blocks) mapBlock(ctx context.Context, channel, pool, id uint64) error {
	p, err := b.Pool(ctx, pool)
	if err != nil {
		return err
	}
	var reply wire.MapReply
	var came wire.Grant
	err = b.session.Do(ctx, &wire.Map{Channel: channel, Block: id}, &Call{Into: &reply,
		OnReply: func(fds *seqpacket.FDs) {
			came = wire.Grant{Pool: pool, Block: id, BlockBytes: reply.BlockBytes, Generation: reply.Generation, Export: &reply.Export}
			b.arrived(came, fds)
		},
		Undo: func() { _ = b.Ended(id) }})
	if errors.Is(err, mempool.ErrNotFound) {
		return typed.Errorf(ErrCorruptRecord, "block %d, which the pool does not have in use: %v", id, err)
	}
	if err != nil {
		return err
	}
	if _, _, err := b.mapped(p, came); err != nil {
		return errors.Join(err, b.Ended(id))
	}
	return nil
}
