package wire

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"
)

// layoutArrays is the number of arrays in a part of the layout of a buffer. The longest names and shapes of so many arrays fit into
// LayoutBytes.
const layoutArrays = 64

// layoutMetadata is the same for metadata.
const layoutMetadata = 7

// AppendLayout appends the layout of a frame to dst, as docs/streams.md describes it. If the layout exceeds a limit, AppendLayout returns
// dst unchanged and a *FieldError that wraps CodeInvalid.
func AppendLayout(dst []byte, l *Layout) ([]byte, error) {
	out, err := appendTo(dst, func(e *encoder) error { return layoutFields.encode(e, l) })
	if n := len(out) - len(dst); err == nil && n > LayoutBytes {
		return dst, &FieldError{Message: "layout", Expected: fmt.Sprintf("at most %d bytes", LayoutBytes), Found: fmt.Sprintf("%d bytes", n), Code: CodeInvalid}
	}
	return out, of("layout", err)
}

// DecodeLayout checks and decodes the layout of a frame. It does not check the tensors.
func DecodeLayout(layout []byte) (*Layout, error) {
	if _, err := Check(layout); err != nil {
		return nil, of("layout", err)
	}
	l := new(Layout)
	return l, of("layout", decodeFrom(layout, func(d *decoder) error { return layoutFields.decode(d, l) }))
}

// AppendBufferLayout appends the layout of a buffer to dst: parts, each a Layout behind the number of its bytes in 4 bytes. If the layout
// exceeds a limit, AppendBufferLayout returns dst unchanged and a *FieldError that wraps CodeInvalid.
func AppendBufferLayout(dst []byte, metadata map[string]string, arrays []NamedTensor) ([]byte, error) {
	var parts []Layout
	for part := range slices.Chunk(metadataEntries(metadata), layoutMetadata) {
		parts = append(parts, Layout{Metadata: part})
	}
	for part := range slices.Chunk(arrays, layoutArrays) {
		parts = append(parts, Layout{Arrays: part})
	}
	out := dst
	for i := range parts {
		at := len(out)
		var err error
		if out, err = AppendLayout(append(out, 0, 0, 0, 0), &parts[i]); err != nil {
			return dst, err
		}
		binary.LittleEndian.PutUint32(out[at:], uint32(len(out)-at-4))
	}
	if n := len(out) - len(dst); n > MaxLayoutBytes {
		return dst, &FieldError{Message: "layout", Expected: fmt.Sprintf("at most %d bytes", MaxLayoutBytes), Found: fmt.Sprintf("%d bytes", n), Code: CodeInvalid}
	}
	return out, nil
}

// metadataEntries returns metadata in the order of its keys.
func metadataEntries(metadata map[string]string) (entries []MetadataEntry) {
	for _, key := range slices.Sorted(maps.Keys(metadata)) {
		value := metadata[key]
		for len(value) > MaxString {
			n := MaxString
			for n > MaxString-utf8.UTFMax && !utf8.RuneStart(value[n]) {
				n--
			}
			entries, value = append(entries, MetadataEntry{key, value[:n]}), value[n:]
		}
		entries = append(entries, MetadataEntry{key, value})
	}
	return entries
}

// DecodeBufferLayout checks and decodes the layout of a buffer. It does not check the tensors.
func DecodeBufferLayout(layout []byte) (metadata map[string]string, arrays []NamedTensor, err error) {
	joined := map[string][]byte{}
	for len(layout) > 0 {
		if len(layout) < 4 || uint64(binary.LittleEndian.Uint32(layout)) > uint64(len(layout)-4) {
			return nil, nil, of("layout", received("ar", "a part behind the number of its bytes", fmt.Sprintf("%d bytes", len(layout))))
		}
		end := 4 + binary.LittleEndian.Uint32(layout)
		part, err := DecodeLayout(layout[4:end])
		if err != nil {
			return nil, nil, err
		}
		arrays, layout = append(arrays, part.Arrays...), layout[end:]
		if len(arrays) == 0 {
			for _, e := range part.Metadata {
				joined[e.Key] = append(joined[e.Key], e.Value...)
			}
		}
	}
	metadata = make(map[string]string, len(joined))
	for key, value := range joined {
		metadata[key] = string(value)
	}
	return metadata, arrays, nil
}
