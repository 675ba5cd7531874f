package service

import "github.com/poolbridge/poolbridge/mempool/service/ledger"

// BlockUse is what a block is used for.
type BlockUse uint8

// These are the uses of a block.
const (
	BlockWritten   BlockUse = iota // leased to be written
	BlockRead                      // leased to be read
	BlockNamed                     // published under a name, without a lease
	BlockInChannel                 // in a channel, or used by the channel's consumers
	BlockFree                      // no buffer uses the block
	BlockHeld                      // the process of an ended session may still touch the block
	BlockReturning                 // being allocated or freed
)

func (u BlockUse) String() string {
	return [...]string{"written", "read", "named", "channel", "free", "held", "returning"}[u]
}

// useOf says what the block of a buffer is used for. moving has the ids of blocks in channels. The caller holds Service.mu.
func useOf(b *ledger.Buffer, moving map[uint64]struct{}) BlockUse {
	switch {
	case b.Frames > 0:
		return BlockInChannel
	case b.Writer != nil:
		if _, moves := moving[b.Block.ID]; moves {
			return BlockInChannel
		}
		return BlockWritten
	case b.Readers.Len() > 0:
		return BlockRead
	}
	return BlockNamed
}
