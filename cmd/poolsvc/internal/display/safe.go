package display

import (
	"fmt"
	"io"
	"unicode"
	"unicode/utf8"
)

// Safe returns a writer for texts of clients. Before it passes text on to w, it replaces each character that cannot be printed, except the
// ends of lines, with "?", as [Printable] does. Each Write must end with a whole character.
func Safe(w io.Writer) io.Writer {
	return replacing{w, func(out []byte, _ rune) []byte { return append(out, '?') }}
}

// SafeJSON returns a writer for JSON with texts of clients. It replaces each character that cannot be printed, except the ends of lines, with
// its escape, so that the values stay the same. Each Write must end with a whole character.
func SafeJSON(w io.Writer) io.Writer {
	return replacing{w, func(out []byte, r rune) []byte {
		if r > 0xffff {
			r -= 0x10000
			return fmt.Appendf(out, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		}
		return fmt.Appendf(out, `\u%04x`, r)
	}}
}

type replacing struct {
	w    io.Writer
	with func(out []byte, r rune) []byte
}

func (s replacing) Write(text []byte) (int, error) {
	out := make([]byte, 0, len(text))
	for _, r := range string(text) {
		if r == '\n' || unicode.IsPrint(r) {
			out = utf8.AppendRune(out, r)
		} else {
			out = s.with(out, r)
		}
	}
	if _, err := s.w.Write(out); err != nil {
		return 0, err
	}
	return len(text), nil
}
