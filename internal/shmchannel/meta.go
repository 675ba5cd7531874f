package shmchannel

import (
	"bytes"
	"encoding/binary"
	"iter"
	"maps"
	"slices"
	"unicode/utf8"
)

// AppendMeta appends the entries of the map `meta` to the slice `to`, in the encoding of [Record.Meta].
//
// Errors: [ErrInvalid] if the map exceeds a limit or has a text that is not UTF-8.
func AppendMeta(to []byte, meta map[string]string) ([]byte, error) {
	if len(meta) > MaxMetaEntries {
		return to, invalid("a frame's map has at most %d entries, this one has %d", MaxMetaEntries, len(meta))
	}
	if len(meta) == 0 {
		return to, nil
	}
	for _, k := range slices.Sorted(maps.Keys(meta)) {
		v := meta[k]
		if len(k) > MaxMetaText || len(v) > MaxMetaText {
			return to, invalid("the keys and values of a frame's map have at most %d bytes, %q has %d and %d", MaxMetaText,
				k[:min(len(k), 32)], len(k), len(v))
		}
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return to, invalid("the keys and values of a frame's map are texts in UTF-8, %q: %q is not", k, v)
		}
		to = binary.LittleEndian.AppendUint16(to, uint16(len(k)))
		to = binary.LittleEndian.AppendUint16(to, uint16(len(v)))
		to = append(append(to, k...), v...)
	}
	return to, nil
}

// CheckMeta returns an error if the bytes are not a valid encoding of a frame's map (see [AppendMeta]).
//
// Errors: [ErrInvalid].
func CheckMeta(meta []byte) error {
	entries := 0
	var last []byte
	for rest := meta; len(rest) > 0; entries++ {
		key, value, after, ok := cutEntry(rest)
		switch {
		case !ok:
			return invalid("the meta of a frame ends in the middle of its entry %d", entries)
		case entries == MaxMetaEntries:
			return invalid("the meta of a frame has more than %d entries", MaxMetaEntries)
		case len(key) > MaxMetaText || len(value) > MaxMetaText:
			return invalid("entry %d of the meta of a frame has %d and %d bytes, more than %d", entries, len(key), len(value), MaxMetaText)
		case !utf8.Valid(key) || !utf8.Valid(value):
			return invalid("entry %d of the meta of a frame is not UTF-8: %q: %q", entries, key, value)
		case entries > 0 && bytes.Compare(key, last) <= 0:
			return invalid("the keys of the meta of a frame are not in order: %q after %q", key, last)
		}
		last, rest = key, after
	}
	return nil
}

// Meta iterates over the keys and values in `meta`. [CheckMeta] must have accepted `meta`. The slices that Meta yields point into `meta`.
func Meta(meta []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(key, value []byte) bool) {
		for len(meta) > 0 {
			key, value, rest, ok := cutEntry(meta)
			if !ok || !yield(key, value) {
				return
			}
			meta = rest
		}
	}
}

func cutEntry(b []byte) (key, value, rest []byte, ok bool) {
	if len(b) < 4 {
		return nil, nil, nil, false
	}
	k, v := int(binary.LittleEndian.Uint16(b)), int(binary.LittleEndian.Uint16(b[2:]))
	if len(b)-4 < k+v {
		return nil, nil, nil, false
	}
	return b[4 : 4+k], b[4+k : 4+k+v], b[4+k+v:], true
}
