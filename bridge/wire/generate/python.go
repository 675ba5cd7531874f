package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"io"
	"strings"
	"text/template"
	"unicode"
	"unicode/utf8"
)

// pythonTemplate is the part of the Python module that is the same for all messages.
//
//go:embed messages.py.tmpl
var pythonTemplate string

func (s *structure) python() string {
	if s.empty() {
		return "Reply" // the envelope of all other replies
	}
	return s.name
}

const pythonColumns = 120

// attribute returns the name that the field has in Python.
func (f *field) attribute() string {
	switch f.name {
	case "Bytes":
		return "nbytes"
	case "BlockBytes":
		return "block_nbytes"
	}
	return snake(f.name)
}

// python writes the messages of the Python client.
func (s *schema) python() ([]byte, error) {
	t, err := template.New("messages.py").Parse(pythonTemplate)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{
		"Mark":     mark,
		"Binaries": s.pythonBinaries(),
		"Parts":    classes(s.with(part)),
		"Requests": classes(s.with(request)),
		"Replies":  classes(s.with(reply)),
		"Notices":  classes(s.with(notice)),
		"Unions":   union("AnyRequest", s.with(request)) + union("AnyNotice", s.with(notice)),
		"Answers":  s.answers(),
	})
	return out.Bytes(), err
}

func (s *schema) pythonBinaries() string {
	var out strings.Builder
	for _, b := range s.binaries {
		fmt.Fprintf(&out, "%s = Annotated[bytes, Meta(min_length=%s, max_length=%s)]\n", b.name, b.size, b.size)
	}
	return out.String()
}

// classes returns the classes of structures, each after two empty lines.
func classes(structs []*structure) string {
	var out strings.Builder
	for _, s := range structs {
		if s.empty() {
			continue
		}
		fmt.Fprintf(&out, "\n\nclass %s(%s):\n", s.python(), s.bases())
		s.docstring(&out)
		for i, f := range s.shown() {
			if i == 0 {
				out.WriteString("\n")
			}
			f.python(&out)
		}
	}
	return out.String()
}

func (s *structure) bases() string {
	switch s.role {
	case request:
		return fmt.Sprintf("Request, kw_only=True, tag=%q", s.wire)
	case reply:
		return "Reply, kw_only=True, weakref=True"
	}
	options := "Struct, omit_defaults=True, gc=False"
	if s.keywordsOnly() {
		options += ", kw_only=True"
	}
	if s.role == notice {
		options += fmt.Sprintf(", tag_field=\"n\", tag=%q", s.wire)
	}
	return options
}

// keywordsOnly says whether callers of the generated Python class must pass all fields by name. They must do so if a field without a
// default follows a field with a default, or if the structure has many fields.
func (s *structure) keywordsOnly() bool {
	defaulted := false
	for _, f := range s.shown() {
		if defaulted && !f.optional {
			return true
		}
		defaulted = defaulted || f.optional
	}
	return len(s.shown()) > 4
}

// docstring writes the docstring of a message: the first sentence in one line, and the rest below this line.
func (s *structure) docstring(out *strings.Builder) {
	var below []string
	if s.role == reply {
		below = append(below, "Answers "+listed(s.answers)+".")
	}
	if s.role == request && !s.reply.empty() {
		below = append(below, "`"+s.reply.python()+"` answers it.")
	}
	s.docstringWith(out, below...)
}

// docstringWith writes a docstring. A text of `more` that has its own lines stays as it is.
func (s *structure) docstringWith(out *strings.Builder, more ...string) {
	first, rest, long := strings.Cut(upper(s.doc), ". ")
	if long {
		first += "."
		more = append([]string{rest}, more...)
	}
	if len(more) == 0 {
		fmt.Fprintf(out, "    \"\"\"%s\"\"\"\n", first)
		return
	}
	fmt.Fprintf(out, "    \"\"\"%s\n", first)
	for _, paragraph := range more {
		out.WriteString("\n")
		if strings.Contains(paragraph, "\n") {
			fmt.Fprintln(out, paragraph)
		} else {
			wrap(out, "    ", paragraph)
		}
	}
	out.WriteString("    \"\"\"\n")
}

// python writes the line of the Python class that declares the field f. The field's meaning is in a comment behind the field, or above the
// field if the line would be too long.
func (f *field) python(out *strings.Builder) {
	name := f.scalar.python
	none := f.scalar.zero
	if f.of != nil {
		name = f.of.python()
		none = "UNSET"
	}
	switch {
	case f.list:
		name = "tuple[" + name + ", ...]"
		none = "()"
	case f.of != nil && f.optional:
		name += " | UnsetType"
	}
	attribute := f.attribute()
	line := fmt.Sprintf("    %s: %s", attribute, name)
	switch {
	case attribute != f.key && f.optional:
		line += fmt.Sprintf(" = field(default=%s, name=%q)", none, f.key)
	case attribute != f.key:
		line += fmt.Sprintf(" = field(name=%q)", f.key)
	case f.optional:
		line += " = " + none
	}
	meaning := f.brief()
	behind := line + "  # " + meaning
	if utf8.RuneCountInString(behind) > pythonColumns {
		wrap(out, "    # ", meaning)
		fmt.Fprintln(out, line)
	} else {
		fmt.Fprintln(out, behind)
	}
}

// union returns the union type of these classes, as ruff formats it.
func union(name string, of []*structure) string {
	names := make([]string, len(of))
	for i, s := range of {
		names[i] = s.python()
	}
	if line := name + " = " + strings.Join(names, " | "); len(line) <= pythonColumns {
		return line + "\n"
	}
	return name + " = (\n    " + strings.Join(names, "\n    | ") + "\n)\n"
}

// answers returns the entries of ANSWERS: the reply of each request.
func (s *schema) answers() string {
	var out strings.Builder
	for _, m := range s.with(request) {
		fmt.Fprintf(&out, "    %s: %s,\n", m.python(), m.reply.python())
	}
	return out.String()
}

// listed returns "`A`, `B` and `C`".
func listed(structs []*structure) string {
	var out strings.Builder
	for i, s := range structs {
		switch {
		case i > 0 && i == len(structs)-1:
			out.WriteString(" and ")
		case i > 0:
			out.WriteString(", ")
		}
		out.WriteString("`" + s.python() + "`")
	}
	return out.String()
}

// wrap writes a text in lines of Python that begin with the prefix.
func wrap(out io.Writer, prefix, text string) { wrapTo(pythonColumns, out, prefix, text) }

// wrapTo writes a text in lines that begin with the prefix and have at most so many columns.
func wrapTo(columns int, out io.Writer, prefix, text string) {
	line := prefix
	for _, word := range strings.Fields(text) {
		if line != prefix && utf8.RuneCountInString(line+" "+word) > columns {
			fmt.Fprintln(out, line)
			line = prefix
		}
		if line != prefix {
			line += " "
		}
		line += word
	}
	fmt.Fprintln(out, line)
}

// upper returns a text with its first letter in upper case.
func upper(text string) string {
	first, size := utf8.DecodeRuneInString(text)
	return string(unicode.ToUpper(first)) + text[size:]
}
