package ledger

import (
	"encoding/binary"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// codec writes the fields of records as bytes, or reads them. A method of an entry names each field once, for both.
type codec struct {
	data  []byte // what is written so far, or what is left to read
	reads bool
	bad   bool // the bytes that were read are no fields
}

// number writes or reads a number that is not negative.
func number[T ~uint8 | ~uint32 | ~int32 | ~int | ~uint64](c *codec, v *T) {
	if !c.reads {
		if n := uint64(*v); n < 0x80 { // most are
			c.data = append(c.data, byte(n))
		} else {
			c.data = binary.AppendUvarint(c.data, n)
		}
		return
	}
	n, size := binary.Uvarint(c.data)
	if *v = T(n); size <= 0 || uint64(*v) != n {
		c.fail()
		return
	}
	c.data = c.data[size:]
}

func (c *codec) fail() { c.data, c.bad = nil, true }

func (c *codec) signed(v *int64) {
	n := uint64(*v)<<1 ^ uint64(*v>>63)
	number(c, &n)
	*v = int64(n>>1) ^ -int64(n&1)
}

func (c *codec) time(v *time.Time) {
	var n int64
	if !v.IsZero() {
		n = v.UnixNano()
	}
	if c.signed(&n); c.reads && n != 0 {
		*v = time.Unix(0, n)
	}
}

// flags writes or reads up to 8 flags.
func (c *codec) flags(all ...*bool) {
	var bits uint8
	for i, v := range all {
		if *v {
			bits |= 1 << i
		}
	}
	if number(c, &bits); bits>>len(all) != 0 {
		c.fail()
	}
	for i, v := range all {
		*v = bits>>i&1 == 1
	}
}

func text[T ~string | ~[]byte](c *codec, v *T) {
	n := uint64(len(*v))
	if number(c, &n); !c.reads {
		c.data = append(c.data, *v...)
		return
	}
	if n > uint64(len(c.data)) {
		c.fail()
		return
	}
	if n > 0 {
		*v = T(c.data[:n:n])
	}
	c.data = c.data[n:]
}

// list writes or reads a list. The function `one` writes or reads an element, which has at least one byte.
func list[E any](c *codec, v *[]E, one func(*codec, *E)) {
	n := uint64(len(*v))
	if number(c, &n); n > uint64(len(c.data)) && c.reads {
		c.fail()
		return
	}
	if c.reads && n > 0 {
		*v = make([]E, n)
	}
	for i := range *v {
		one(c, &(*v)[i])
	}
}

func (c *codec) fences(v *Fences) {
	list(c, (*[]mempool.Fence)(v), func(c *codec, f *mempool.Fence) {
		number(c, &f.Timeline)
		number(c, &f.Word)
		number(c, &f.Value)
	})
}

// tensor writes or reads what a service knows of a tensor.
func (c *codec) tensor(t *mempool.Tensor) {
	text(c, &t.DType)
	list(c, &t.Shape, number)
	list(c, &t.Strides, (*codec).signed)
	number(c, &t.ByteOffset)
	number(c, &t.LayoutBytes)
}

func (c *codec) peer(p *mempool.Peer) {
	number(c, &p.UID)
	number(c, &p.GID)
	list(c, &p.Groups, number)
	number(c, &p.PID)
	number(c, &p.Process)
}

func (c *codec) pool(i *mempool.PoolInfo) {
	text(c, &i.Name)
	text(c, &i.Kind)
	ordinal := int64(i.Device.Ordinal)
	c.signed(&ordinal)
	i.Device.Ordinal = int(ordinal)
	text(c, &i.Device.UUID)
	number(c, &i.MaxBytes)
	number(c, &i.SessionBytes)
	number(c, &i.UserBytes)
}

func (c *codec) channel(s *mempool.ChannelSpec) {
	text(c, &s.Name)
	number(c, &s.Pool)
	text(c, &s.Mode)
	number(c, &s.Capacity)
	text(c, &s.Full)
	number(c, &s.MaxDeliveries)
}
