package pattern

import (
	"encoding/binary"
	"fmt"
)

// Frame is a pattern of uint32 for frames of a stream. Every element depends on the number of the frame, which is Seq. If two frames have
// different numbers, and the difference is less than 2^32, then for every i the two elements i differ. So a verification notices if memory has
// the elements of another frame, or elements of two frames.
//
// Element i is mix(i·0x9e3779b1 + low(Seq)·0x85ebca77 + high(Seq)·0xc2b2ae3d), modulo 2^32. low(Seq) and high(Seq) are the low and the high 32
// bits of Seq. mix(x) is: x ^= x>>15; x *= 0x2c1b3c6d; x ^= x>>13.
type Frame struct {
	Seq uint64 `json:"seq"`
}

// At returns element i.
func (p Frame) At(i uint64) uint32 { return mix(uint32(i)*0x9e3779b1 + p.salt()) }

func (p Frame) salt() uint32 { return uint32(p.Seq)*0x85ebca77 + uint32(p.Seq>>32)*0xc2b2ae3d }

// mix is a one-to-one mapping of the 32-bit words.
func mix(x uint32) uint32 {
	x ^= x >> 15
	x *= 0x2c1b3c6d
	return x ^ x>>13
}

func (p Frame) String() string { return fmt.Sprintf("frame %d", p.Seq) }

// Validate returns nil.
func (p Frame) Validate() error { return nil }

// ElementBytes is 4.
func (p Frame) ElementBytes() uint64 { return 4 }

// Bits returns At(i).
func (p Frame) Bits(i uint64) uint64 { return uint64(p.At(i)) }

// Format returns the number in hex.
func (p Frame) Format(bits uint64) string { return fmt.Sprintf("%#010x", uint32(bits)) }

func (p Frame) fill(mem []byte, first uint64) {
	salt := p.salt()
	for b := 0; b+4 <= len(mem); b += 4 {
		binary.NativeEndian.PutUint32(mem[b:b+4], mix(uint32(first)*0x9e3779b1+salt))
		first++
	}
}

func (p Frame) check(mem []byte, first uint64, r *Report) {
	salt := p.salt()
	for b := 0; b+4 <= len(mem); b += 4 {
		if got := binary.NativeEndian.Uint32(mem[b : b+4]); got != mix(uint32(first)*0x9e3779b1+salt) {
			r.add(Mismatch{first, uint64(got)})
		}
		first++
	}
}

func (p Frame) kernel() (string, uint64, []any) { return "frame_u32", 0, []any{p.Seq} }
