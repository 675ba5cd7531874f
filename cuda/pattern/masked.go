package pattern

import (
	"encoding/binary"
	"fmt"
)

// Masked is a pattern of uint32. Element i is (Scale·i + Offset) XOR Mask, modulo 2^32.
type Masked struct {
	Scale  uint32 `json:"scale"`
	Offset uint32 `json:"offset"`
	Mask   uint32 `json:"mask"`
}

// At returns element i.
func (p Masked) At(i uint64) uint32 { return (p.Scale*uint32(i) + p.Offset) ^ p.Mask }

func (p Masked) String() string {
	return fmt.Sprintf("(%d·i + %d) XOR %#x", p.Scale, p.Offset, p.Mask)
}

// Validate returns nil.
func (p Masked) Validate() error { return nil }

// ElementBytes is 4.
func (p Masked) ElementBytes() uint64 { return 4 }

// Bits returns At(i).
func (p Masked) Bits(i uint64) uint64 { return uint64(p.At(i)) }

// Format returns the number in hex.
func (p Masked) Format(bits uint64) string { return fmt.Sprintf("%#010x", uint32(bits)) }

func (p Masked) fill(mem []byte, first uint64) {
	for b := 0; b+4 <= len(mem); b += 4 {
		binary.NativeEndian.PutUint32(mem[b:b+4], p.At(first))
		first++
	}
}

func (p Masked) check(mem []byte, first uint64, r *Report) {
	for b := 0; b+4 <= len(mem); b += 4 {
		if got := binary.NativeEndian.Uint32(mem[b : b+4]); got != p.At(first) {
			r.add(Mismatch{first, uint64(got)})
		}
		first++
	}
}

func (p Masked) kernel() (string, uint64, []any) {
	return "masked_u32", 0, []any{p.Scale, p.Offset, p.Mask}
}
