package mempool

import "encoding/hex"

// This file has what clients and the service tell each other. All of it is plain data.

// Epoch identifies one life of a service: every id is meant within an epoch.
type Epoch [16]byte

func (e Epoch) String() string { return hex.EncodeToString(e[:]) }

// PoolInfo is what a client must know about a pool. It is plain data.
type PoolInfo struct {
	// ID is never reused within an epoch.
	ID           uint64
	Name         string
	Kind         Kind
	Device       DeviceInfo
	MaxBytes     uint64
	SessionBytes uint64
	UserBytes    uint64
}

// LeaseInfo is what a client must know about a lease. It is plain data.
type LeaseInfo struct {
	// ID is never reused within an epoch. The lease of a frame has none: 0.
	ID uint64
	// Buffer is never reused within an epoch, Generation counts the uses of the block. Frames use a buffer again and again.
	Buffer, Generation uint64
	Write              bool
	Pool               uint64
	// Block is never reused within an epoch, BlockBytes its size.
	Block, BlockBytes uint64
	// Bytes of the buffer, which starts where its block does.
	Bytes  uint64
	Tensor Tensor
	// Wait is what must be reached before the memory is used, as far as it is not yet.
	Wait []Fence
	// Event is the interprocess event that came with the content, if any. EventOnly says that no fence in Wait stands for it: it
	// must be waited for.
	Event     []byte
	EventOnly bool
}

// Stats is the accounting of a service at one moment.
type Stats struct {
	Sessions, Leases, Buffers, Names int
	Pools                            []PoolStats
}

// PoolStats is the accounting of a pool at one moment, in bytes. Reserved = Leased + Cached + Held.
type PoolStats struct {
	Pool PoolInfo
	// Reserved is all blocks; Leased those that buffers use, Cached those free for use, Held those that are free but being
	// recalled, freed, or waiting for a process to end.
	Reserved, Leased, Cached, Held uint64
	// Used is what the buffers asked for.
	Used uint64
	// Blocks is how many there are.
	Blocks int
	// Session and User are what counts for the session that asks and for its user; 0 where the service itself does.
	Session, User uint64
}
