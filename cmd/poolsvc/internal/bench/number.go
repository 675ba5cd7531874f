package bench

import (
	"context"
	"encoding/binary"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge"
)

// stampNumber writes a number to the first bytes of a buffer that the CPU can access. The receiver identifies the buffer by this number.
func stampNumber(ctx context.Context, b *bridge.Lease, number uint64) error {
	mem, err := b.Bytes(ctx)
	if err == nil && len(mem) >= 8 {
		binary.LittleEndian.PutUint64(mem, number)
	}
	return err
}

// numberIs checks that a buffer has the number that stampNumber wrote.
func numberIs(ctx context.Context, b *bridge.Lease, number uint64) error {
	mem, err := b.Bytes(ctx)
	if err != nil || len(mem) < 8 {
		return err
	}
	if got := binary.LittleEndian.Uint64(mem); got != number {
		return fmt.Errorf("frame %d has the number %d", number, got)
	}
	return nil
}
