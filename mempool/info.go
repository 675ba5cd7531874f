package mempool

import "encoding/hex"

// This file has the plain data that clients and the service exchange.

// Epoch identifies one life of a service. Every id is valid within one epoch only.
type Epoch [16]byte

func (e Epoch) String() string { return hex.EncodeToString(e[:]) }

// PoolInfo is what the service tells a client about a pool. It is plain data.
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

// LeaseInfo is what the service tells a client about a lease. It is plain data.
type LeaseInfo struct {
	// ID is never reused within an epoch. The lease of a frame has none: 0.
	ID uint64
	// Buffer is never reused within an epoch. Generation counts the uses of the block. Frames use a buffer again and again.
	Buffer, Generation uint64
	Write              bool
	Pool               uint64
	// Block is never reused within an epoch. BlockBytes is its size.
	Block, BlockBytes uint64
	// Bytes is the size of the buffer, which begins at the beginning of its block.
	Bytes  uint64
	Tensor Tensor
	// Wait has the fences that are not reached yet and must be before the memory is used.
	Wait []Fence
	// Event is the interprocess event that came with the content, if any. EventOnly means that no fence in Wait implies the event, so
	// the reader must wait for it.
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
	// Reserved is the bytes of all blocks. Leased is those of blocks that buffers use, Cached those of blocks that are free for use, and
	// Held those of blocks that are being recalled or freed, or wait for a process to end.
	Reserved, Leased, Cached, Held uint64
	// Used is the bytes that the buffers asked for.
	Used uint64
	// Blocks is the number of blocks.
	Blocks int
	// Session and User are the bytes that count for the asking session and for its user; 0 if the service itself asks.
	Session, User uint64
}
