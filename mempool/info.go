package mempool

import "encoding/hex"

// This file has the types of the plain data that clients and the service exchange.

// Epoch identifies one run of a service: each time the service starts, a new epoch begins. Every id is valid within one epoch only.
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

// Grant describes the lease that the service has given a session, its buffer and its block. It is plain data.
type Grant struct {
	// ID is never reused within an epoch. The lease of a frame has no ID: the field is 0.
	ID uint64
	// Buffer is the id of the buffer. The id is never reused within an epoch, but many frames can use the same buffer. Generation
	// counts the buffers that have used the block. Each service begins with another number.
	Buffer, Generation uint64
	Write              bool
	Pool               uint64
	// Block is the id of the block, which is never reused within an epoch. BlockBytes is the size of the block.
	Block, BlockBytes uint64
	// Bytes is the size of the buffer, which begins at the byte Base of its block.
	Bytes, Base uint64
	Tensor      Tensor
	// Wait has the fences that were not reached when the service granted the lease, and those that have failed. The client waits for them
	// before it uses the memory, or makes the GPU's stream wait.
	Wait []Fence
	// Event is the handle of the interprocess event that came with the content, or nil.
	Event []byte
}
