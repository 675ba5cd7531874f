package wire

import "math"

// These are the limits of protocol version 1. A packet that exceeds one of the first seven limits is malformed. Package seqpacket refuses a
// packet with more than MaxFDs descriptors. Check refuses a packet that exceeds one of the other six limits, and the Append functions never
// make such a packet. A packet whose tensor or name exceeds its limit is well-formed, and the receiver answers with [CodeInvalid].
const (
	MaxPacket   = 65536 // bytes of a packet
	MaxFDs      = 8     // file descriptors with a packet
	MaxDepth    = 8     // nested maps and arrays, including the packet's outermost map
	MaxEntries  = 64    // entries of a map
	MaxElements = 1024  // elements of an array
	MaxString   = 4096  // bytes of a string or a key
	MaxBinary   = 4096  // bytes of a binary

	MaxDims       = 32  // dimensions of a tensor
	MaxNameBytes  = 255 // bytes of the name of a pool, channel or buffer
	MaxDone       = 16  // fences of a release
	EventBytes    = 64  // bytes of an interprocess event
	TimelineWords = 512 // words of a timeline
	MaxList       = 64  // entries of a page of a list
	MaxEvents     = 32  // entries of a page of events
	MaxReaders    = 8   // readers that the entry of a buffer names

	MaxUint  = math.MaxInt64  // greatest unsigned integer
	MaxQuery = math.MaxUint32 // greatest request number
)

// Version is the protocol version that this package speaks.
const Version = 1
