package wire

// record describes a structure: its fields in the order in which they are sent.
type record[T any] []field[T]

// size returns how many of m's fields are sent.
func (r record[T]) size(m *T) int {
	n := len(r)
	for i := range r {
		if r[i].optional && r[i].empty(m) {
			n--
		}
	}
	return n
}

// body writes the keys and values of m, without the head of the map.
func (r record[T]) body(e *encoder, m *T) error {
	for i := range r {
		f := &r[i]
		if f.optional && f.empty(m) {
			continue
		}
		if err := e.key(f.key); err != nil {
			return err
		}
		if err := f.encode(e, m); err != nil {
			return under(f.key, err)
		}
	}
	return nil
}

func (r record[T]) encode(e *encoder, m *T) error {
	if err := e.mp.EncodeMapLen(r.size(m)); err != nil {
		return err
	}
	return r.body(e, m)
}

// decode reads a map of the packet, and sets every field of m to the value of its key, or to the zero value. decode ignores unknown keys.
// If a required key is missing, decode returns an error.
func (r record[T]) decode(d *decoder, m *T) error {
	*m = *new(T)
	n, err := d.mapLen()
	if err != nil {
		return err
	}
	var seen uint64 // a bit for each field that was read; Check has refused duplicate keys
	next := 0       // most packets have the keys in the order of the record
	for range n {
		key, err := d.key()
		if err != nil {
			return err
		}
		i := r.find(key, next)
		if i < 0 {
			if err := d.mp.Skip(); err != nil {
				return err
			}
			continue
		}
		if err := r[i].decode(d, m); err != nil {
			return under(r[i].key, err)
		}
		seen |= 1 << i
		next = i + 1
	}
	for i := range r {
		if !r[i].optional && seen&(1<<i) == 0 {
			return received(r[i].key, "a value", "none")
		}
	}
	return nil
}

// find returns the index of the field with the given key. It searches from the index `from` to the end of r, and then from the start of r.
// It returns -1 if no field has the key.
func (r record[T]) find(key []byte, from int) int {
	for i := from; i < len(r); i++ {
		if r[i].key == string(key) {
			return i
		}
	}
	for i := range min(from, len(r)) {
		if r[i].key == string(key) {
			return i
		}
	}
	return -1
}

// fields is one message together with its record.
type fields interface {
	size() int
	body(*encoder) error
	decode(*decoder) error
}

// of binds the record to the message m, so that code which does not know its type can encode and decode it.
func (r record[T]) of(m *T) fields { return bound[T]{r, m} }

type bound[T any] struct {
	record record[T]
	of     *T
}

func (b bound[T]) size() int               { return b.record.size(b.of) }
func (b bound[T]) body(e *encoder) error   { return b.record.body(e, b.of) }
func (b bound[T]) decode(d *decoder) error { return b.record.decode(d, b.of) }
