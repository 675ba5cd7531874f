package wire

//wire:limits mempool shmchannel python c
const (
	MaxDims  = 32          // dimensions
	MaxDone  = 1<<40 - 1   // a number that needs more than 32 bits
	MaxBytes = 1 << 33     // bytes
	MaxSteps = 2 * MaxDims // steps
)

// Only package wire has these.
const (
	MaxList = 64 // entries
)

//wire:limits seqpacket
const (
	MaxFDs = 8 // descriptors
)
