package service

import (
	"encoding/binary"
	"slices"

	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/eventlog"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Info describes the pool.
func (p *Pool) Info() mempool.PoolInfo { return p.rec.Info }

// accessOf returns the access list of a pool that the peer `maker` makes. The list is a sorted copy of the argument `a`, without duplicate
// ids. If `a` is empty, only the user of `maker` gets access.
func accessOf(a mempool.Access, maker mempool.Peer) mempool.Access {
	a = mempool.Access{UIDs: slices.Compact(slices.Sorted(slices.Values(a.UIDs))), GIDs: slices.Compact(slices.Sorted(slices.Values(a.GIDs)))}
	if len(a.UIDs) == 0 && len(a.GIDs) == 0 {
		a.UIDs = []uint32{maker.UID}
	}
	return a
}

// alike returns nil if the pool has the same settings and the same access list as a pool that `peer` would make with `spec`.
//
// Errors: [mempool.ErrExists], whose text says what differs; [mempool.ErrUnavailable] and [mempool.ErrInvalid] if there is no such device.
func (p *Pool) alike(peer mempool.Peer, spec mempool.PoolSpec) error {
	access, info := accessOf(spec.Access, peer), p.rec.Info
	switch {
	case info.Kind != spec.Kind:
		spec.Device = info.Device.UUID // do not report the device too
	case info.Device != mempool.NoDevice: // a GPU has several names
		uuid, err := mempool.DeviceUUID(spec.Device)
		if err != nil {
			return err
		}
		spec.Device = uuid
	}
	differs := ledger.Differences([]ledger.Setting{
		{Name: "kind", Have: info.Kind, Want: spec.Kind},
		{Name: "device", Have: info.Device.UUID, Want: spec.Device},
		{Name: "max_bytes", Have: info.MaxBytes, Want: spec.MaxBytes},
		{Name: "session_bytes", Have: info.SessionBytes, Want: spec.SessionBytes},
		{Name: "user_bytes", Have: info.UserBytes, Want: spec.UserBytes},
		{Name: "uids", Have: p.rec.Access.UIDs, Want: access.UIDs},
		{Name: "gids", Have: p.rec.Access.GIDs, Want: access.GIDs},
	})
	if differs != "" {
		return typed.Errorf(mempool.ErrExists, "there is a pool %q already, which differs from what was asked for: %s; open it as it is (OpenPool in Go and open_pool in Python), or choose another name",
			info.Name, differs)
	}
	return nil
}

// DriverInUse returns how many bytes of the pool are allocated, according to the driver or the system. Tests compare this number with
// the pool's reserved bytes.
func (p *Pool) DriverInUse() (n uint64, err error) {
	p.svc.mu.Lock()
	backing := p.backing
	for _, k := range p.files {
		n += k.bytes
	}
	p.svc.mu.Unlock()
	if backing == nil {
		return n, nil
	}
	more, err := backing.InUse()
	return n + more, err
}

// ensureBacking returns the backing from which the pool allocates, and the number of its descriptor. It makes the backing if there is none.
func (p *Pool) ensureBacking() (mempool.Backing, uint64, error) {
	p.making.Lock()
	defer p.making.Unlock()
	if p.backing != nil {
		return p.backing, p.rec.File, nil
	}
	svc, of := p.svc, p.rec.Info
	backing, err := mempool.NewBacking(mempool.PoolSpec{Name: of.Name, Kind: of.Kind, Device: of.Device.UUID, MaxBytes: of.MaxBytes}, svc.memory)
	if svc.eventLog.Called(eventlog.CreateBacking, err) != nil {
		return nil, 0, err
	}
	number := svc.descriptors.putBacking(backing)
	svc.mu.Lock()
	defer svc.mu.Unlock()
	p.backing, p.rec.File = backing, number
	svc.ledger.Touch(p.rec)
	return backing, number, nil
}

// Export returns what another process needs to map the pool. The service closes the files of the export.
func (p *Pool) Export() (x mempool.Export) {
	p.svc.mu.Lock()
	defer p.svc.mu.Unlock()
	if p.aged {
		return x // each block brings its descriptor
	}
	x = p.backing.Export()
	if p.rec.File != 0 && !p.rec.Info.Kind.CanAdopt() {
		x.Data = binary.LittleEndian.AppendUint64(nil, p.rec.File)
	}
	return x
}

// storeBlock gives the store what a successor needs to have the memory, and says where the memory is.
func (p *Pool) storeBlock(mem mempool.Allocation, backing mempool.Backing, number uint64) newBlock {
	b := newBlock{memory: &blockMemory{Allocation: mem}}
	if a, ok := mem.(mempool.Adoptable); ok {
		b.place = a.Place()
		return b
	}
	if p.svc.descriptors.store == nil {
		return b
	}
	x, err := mem.Export()
	switch {
	case err != nil: // the session that leases the block gets the error
	case len(x.Files) > 0:
		b.place = p.svc.descriptors.put(x.Files[0])
	case number != 0:
		b.place, b.export = number, x.Data
		if p.aged {
			b.memory.exported, b.memory.export = true, exportOf(x.Data, number, backing.Export().Files[0])
		}
	}
	return b
}
