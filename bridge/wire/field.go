package wire

// field says how to encode and decode one key of a structure of the protocol. The Go struct T represents this structure, and one field of T
// has the value of the key.
type field[T any] struct {
	key      string
	optional bool
	empty    func(*T) bool
	encode   func(*encoder, *T) error
	decode   func(*decoder, *T) error
}

// maybe returns the field as an optional one: its zero value is not sent, and is what the receiver has if the field is missing.
func (f field[T]) maybe() field[T] {
	f.optional = true
	return f
}

// value makes a field whose value has type V. `empty` checks for the zero value, `put` writes a value, and `get` reads a value.
func value[T, V any](key string, at func(*T) *V, empty func(V) bool,
	put func(*encoder, V) error, get func(*decoder) (V, error)) field[T] {
	return field[T]{
		key:    key,
		empty:  func(m *T) bool { return empty(*at(m)) },
		encode: func(e *encoder, m *T) error { return put(e, *at(m)) },
		decode: func(d *decoder, m *T) (err error) {
			*at(m), err = get(d)
			return err
		},
	}
}

func zero[V comparable](v V) bool {
	var none V
	return v == none
}

func none[V any](v []V) bool { return len(v) == 0 }

func uintField[T any, N ~uint64](key string, at func(*T) *N) field[T] {
	return value(key, at, zero, func(e *encoder, v N) error { return e.uint(uint64(v)) }, func(d *decoder) (N, error) {
		v, err := d.uint()
		return N(v), err
	})
}

func boolField[T any](key string, at func(*T) *bool) field[T] {
	return value(key, at, zero, (*encoder).bool, (*decoder).bool)
}

func stringField[T any, S ~string](key string, at func(*T) *S) field[T] {
	return value(key, at, zero, func(e *encoder, v S) error { return e.string(string(v)) }, func(d *decoder) (S, error) {
		v, err := d.string()
		return S(v), err
	})
}

// textField makes a field whose value is a text that people read. The encoder cuts the text if it is longer than MaxString bytes.
func textField[T any](key string, at func(*T) *string) field[T] {
	return value(key, at, zero, (*encoder).text, (*decoder).string)
}

func codeField[T any](key string, at func(*T) *Code) field[T] {
	return value(key, at, zero, (*encoder).code, (*decoder).code)
}

func binaryField[T any](key string, at func(*T) *[]byte) field[T] {
	return value(key, at, none, (*encoder).binary, (*decoder).binary)
}

func epochField[T any](key string, at func(*T) *Epoch) field[T] {
	return value(key, at, zero, (*encoder).epoch, (*decoder).epoch)
}

func uintsField[T any](key string, at func(*T) *[]uint64) field[T] {
	return value(key, at, none, list((*encoder).uint), items((*decoder).uint))
}

func intsField[T any](key string, at func(*T) *[]int64) field[T] {
	return value(key, at, none, list((*encoder).int), items((*decoder).int))
}

func stringsField[T any](key string, at func(*T) *[]string) field[T] {
	return value(key, at, none, list((*encoder).string), items((*decoder).string))
}

// structField is a required structure.
func structField[T, V any](key string, at func(*T) *V, fields record[V]) field[T] {
	return field[T]{
		key:    key,
		empty:  func(*T) bool { return false },
		encode: func(e *encoder, m *T) error { return fields.encode(e, at(m)) },
		decode: func(d *decoder, m *T) error { return fields.decode(d, at(m)) },
	}
}

// pointerField makes a field whose value is an optional structure. If the pointer to the structure is nil, the encoder leaves out the
// field.
func pointerField[T, V any](key string, at func(*T) **V, fields record[V]) field[T] {
	return field[T]{
		key:      key,
		optional: true,
		empty:    func(m *T) bool { return *at(m) == nil },
		encode:   func(e *encoder, m *T) error { return fields.encode(e, *at(m)) },
		decode: func(d *decoder, m *T) error {
			v := new(V)
			*at(m) = v
			return fields.decode(d, v)
		},
	}
}

// structsField is an array of structures.
func structsField[T, V any](key string, at func(*T) *[]V, fields record[V]) field[T] {
	get := func(d *decoder) (v V, err error) { return v, fields.decode(d, &v) }
	return value(key, at, none, listAt(fields.encode), items(get))
}
