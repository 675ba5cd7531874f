package mempool

// PartOf returns the n bytes of m that begin at the byte `base`. The caller must check that these bytes are inside m.
func PartOf(m Memory, base, n uint64) Memory { return &part{m, base, n} }

// part is a part of a memory.
type part struct {
	Memory
	base, n uint64
}

func (p *part) CopyFrom(off uint64, src []byte) error { return p.Memory.CopyFrom(p.base+off, src) }
func (p *part) CopyTo(dst []byte, off uint64) error   { return p.Memory.CopyTo(dst, p.base+off) }
func (p *part) Fill(off, n uint64, b byte) error      { return p.Memory.Fill(p.base+off, n, b) }
func (p *part) Pointer() uintptr                      { return p.Memory.Pointer() + uintptr(p.base) }

func (p *part) Bytes() []byte {
	b := p.Memory.Bytes()
	if b == nil {
		return nil
	}
	return b[p.base : p.base+p.n : p.base+p.n]
}
