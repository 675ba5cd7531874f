package main

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

// schema has the messages of the source.
type schema struct {
	structs  []*structure // in the order of the source
	binaries []binary
}

// role is the role of a structure in the protocol.
type role int

const (
	part role = iota // a part of other structures
	request
	reply
	notice
)

// structure is a struct of the source.
type structure struct {
	name    string
	doc     string // the comment of the struct, without the name
	fields  []field
	inline  *field // the only field of the struct; the fields of this field are the fields of the message
	role    role
	wire    string       // the operation of a request, or the name of a notice
	reply   *structure   // the reply of a request
	answers []*structure // the requests that a reply answers

	public bool // the structure has a public class in Python, and a type in package mempool
	byHand bool // the type in package mempool and its conversions are written by hand
}

// empty says whether the structure is EmptyReply, the reply without fields.
func (s *structure) empty() bool { return s.name == emptyReply }

const emptyReply = "EmptyReply"

// shown returns the fields that a packet has.
func (s *structure) shown() []field {
	if s.inline != nil {
		return s.inline.of.fields
	}
	return s.fields
}

// field is a field of a structure.
type field struct {
	name, key, meaning string
	goType             string // the field's Go type, as the source writes it
	optional           bool
	text               bool // a text for people, which the encoder cuts if it is too long
	list               bool
	scalar             scalar     // the field's type, or the type of its elements
	of                 *structure // the structure of the field, or of its elements; nil for scalars

	// These are the options of a field of a public structure.
	embed   bool   // the fields of this field are also fields of the public structure
	none    string // the name of the field whose zero value says that this field has no value; empty: it always has one
	jsonKey string // the key of JSON; "-": none
	jsonIf  string // the name of the field without which JSON does not have the field; empty: JSON always has it
}

// scalar is a type whose values have no fields.
type scalar struct {
	page   string // name of the type in docs/protocol.md
	python string
	zero   string // the zero value in Python
	field  string // the function of bridge/wire/field.go that makes a field; "" if no such function exists yet
	list   string // the function of bridge/wire/field.go for a list of such values

	public publicType
}

var scalars = map[string]scalar{
	"uint64": {page: "u", python: "U", zero: "0", field: "uintField", list: "uintsField", public: publicType{golang: "uint64", python: "int", none: "0"}},
	"int64":  {page: "i", python: "I64", zero: "0", list: "intsField", public: publicType{golang: "int64", python: "int", none: "0"}},
	"bool":   {page: "b", python: "bool", zero: "False", field: "boolField", public: publicType{golang: "bool", python: "bool", none: "false"}},
	"string": {page: "s", python: "str", zero: `""`, field: "stringField", list: "stringsField", public: publicType{golang: "string", python: "str", none: `""`}},
	"Code":   {page: "s", python: "str", zero: `""`, field: "codeField"},
	"[]byte": {page: "bin", python: "bytes", zero: `b""`, field: "binaryField"},

	// These types say what a number or a text is. Each has another type in the public structures.
	"Time": number(publicType{golang: "time.Time", toGo: "timeOf", toWire: "wireTime", python: "datetime", fromWire: "_time(%s)", unit: "in UTC"}),
	"Duration": number(publicType{golang: "time.Duration", toGo: "durationOf", toWire: "wireDuration", python: "float", fromWire: "%s / 1e9",
		unit: "in seconds", wireUnit: "in nanoseconds"}),
	"Count":         number(publicType{golang: "int", toGo: "countOf", toWire: "wireCount", python: "int"}),
	"UserID":        number(publicType{golang: "uint32", toGo: "userOf", toWire: "wire.UserID", python: "int"}),
	"ProcessID":     number(publicType{golang: "int32", toGo: "processOf", toWire: "wireProcess", python: "int"}),
	"Kind":          text(publicType{golang: "Kind", python: "Kind", fromWire: `cast("Kind", %s)`}),
	"ChannelMode":   text(publicType{golang: "ChannelMode", python: "ChannelMode", fromWire: `cast("ChannelMode", %s)`}),
	"FullPolicy":    text(publicType{golang: "FullPolicy", python: "FullPolicy", fromWire: `cast("FullPolicy", %s)`}),
	"EventKind":     text(publicType{golang: "EventKind", python: "str"}),
	"SessionEnding": text(publicType{golang: "SessionEnding", python: "str"}),
}

// publicType is the type that a field of a public structure has.
type publicType struct {
	golang       string // its type in package mempool
	toGo, toWire string // the functions of package convert; empty: the types are the same
	none         string // its zero value in Go, if Go can compare with it
	python       string // its type in the Python client
	fromWire     string // format of the Python expression that converts it; empty: the values are the same
	unit         string // the unit of a value in Python
	wireUnit     string // the unit of a value on the wire
}

func number(public publicType) scalar {
	if public.golang != "time.Time" {
		public.none = "0"
	}
	return scalar{page: "u", python: "U", zero: "0", field: "uintField", public: public}
}

func text(public publicType) scalar {
	public.none, public.toGo, public.toWire = `""`, "mempool."+public.golang, "wire."+public.golang
	return scalar{page: "s", python: "str", zero: `""`, field: "stringField", public: public}
}

// binary is a type of the source that is an array of bytes.
type binary struct {
	name, size string
}

// parse reads the messages of a source file.
func parse(name string, source []byte) (*schema, error) {
	file, err := parser.ParseFile(token.NewFileSet(), name, source, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	r := reader{known: map[string]*structure{}, binaries: map[string]binary{}, replies: map[string]string{}}
	declared := map[*structure]*ast.StructType{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok || g.Tok != token.TYPE {
			return nil, fmt.Errorf("%s: expected types and nothing else", name)
		}
		for _, spec := range g.Specs {
			t := spec.(*ast.TypeSpec)
			switch shape := t.Type.(type) {
			case *ast.ArrayType:
				b := binary{name: t.Name.Name}
				if size, ok := shape.Len.(*ast.BasicLit); ok && types.ExprString(shape.Elt) == "byte" {
					b.size = size.Value
				}
				if b.size == "" {
					return nil, fmt.Errorf("%s: expected a struct or an array of bytes", b.name)
				}
				r.binaries[b.name] = b
				r.schema.binaries = append(r.schema.binaries, b)
			case *ast.StructType:
				s, err := r.declare(t.Name.Name, g.Doc)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", t.Name.Name, err)
				}
				declared[s] = shape
			default:
				return nil, fmt.Errorf("%s: expected a struct or an array of bytes", t.Name.Name)
			}
		}
	}
	for _, s := range r.schema.structs {
		if err := r.define(s, declared[s]); err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return &r.schema, r.check()
}

type reader struct {
	schema   schema
	known    map[string]*structure
	binaries map[string]binary
	replies  map[string]string // the names of replies, by the names of requests
}

// declare reads the comment of a struct.
func (r *reader) declare(name string, comment *ast.CommentGroup) (*structure, error) {
	s := &structure{name: name}
	var said bool
	if s.doc, said = strings.CutPrefix(oneLine(comment), name+" "); !said {
		return nil, fmt.Errorf("expected a comment that begins with its name and a verb")
	}
	for _, line := range comment.List {
		words, ok := strings.CutPrefix(line.Text, "//wire:")
		if !ok {
			continue
		}
		switch w := strings.Fields(words); {
		case s.role == part && len(w) == 2 && w[0] == "request":
			s.role, s.wire, r.replies[name] = request, w[1], emptyReply
		case s.role == part && len(w) == 3 && w[0] == "request":
			s.role, s.wire, r.replies[name] = request, w[1], w[2]
		case s.role == part && len(w) == 2 && w[0] == "notice":
			s.role, s.wire = notice, w[1]
		case !s.public && len(w) == 1 && w[0] == "public":
			s.public = true
		case !s.byHand && len(w) == 1 && w[0] == "go":
			s.byHand = true
		default:
			return nil, fmt.Errorf("expected one //wire:request OPERATION REPLY, one //wire:notice NAME, one //wire:public, or one //wire:go, "+
				"found %q", line.Text)
		}
	}
	r.known[name] = s
	r.schema.structs = append(r.schema.structs, s)
	return s, nil
}

// define reads the fields of a struct.
func (r *reader) define(s *structure, declared *ast.StructType) error {
	for _, f := range declared.Fields.List {
		if len(f.Names) != 1 || f.Tag == nil {
			return fmt.Errorf("expected one name and a tag in front of each meaning, found %s", types.ExprString(f.Type))
		}
		made := field{name: f.Names[0].Name, goType: types.ExprString(f.Type)}
		if made.meaning = oneLine(f.Doc); f.Comment != nil {
			made.meaning = oneLine(f.Comment)
		}
		if err := r.complete(&made, f.Tag.Value); err != nil {
			return fmt.Errorf("%s: %w", made.name, err)
		}
		if slices.ContainsFunc(s.fields, func(f field) bool { return f.key == made.key }) {
			return fmt.Errorf("%s: its key %q is taken", made.name, made.key)
		}
		s.fields = append(s.fields, made)
	}
	if len(s.fields) > 0 && s.fields[0].key == "" {
		s.inline = &s.fields[0]
	}
	if s.inline != nil && (len(s.fields) > 1 || s.inline.of == nil || s.inline.list || s.role != notice) {
		return fmt.Errorf("%s: only a notice can have a structure inline, and has nothing else then", s.inline.name)
	}
	return nil
}

// complete reads a field's tag and type.
func (r *reader) complete(f *field, quoted string) error {
	tag, err := strconv.Unquote(quoted)
	if err != nil {
		return err
	}
	key, option, _ := strings.Cut(reflect.StructTag(tag).Get("wire"), ",")
	f.key, f.optional = strings.CutSuffix(key, "?")
	option, f.none, _ = strings.Cut(option, "=")
	if option == "none" {
		f.none = cmp.Or(f.none, f.name)
	}
	f.text, f.embed = option == "text", option == "embed"
	jsonKey, jsonOption, _ := strings.Cut(reflect.StructTag(tag).Get("poolsvc"), ",")
	f.jsonKey, f.jsonIf = cmp.Or(jsonKey, snake(f.name)), f.none
	switch jsonOption {
	case "zero":
		f.jsonIf = ""
	case "omitempty":
		f.jsonIf = f.name
	}
	switch {
	case f.meaning == "" || strings.Contains(f.meaning, "|"):
		return fmt.Errorf("expected a comment that says what it means, without a vertical bar")
	case f.text && f.goType != "string" || !slices.Contains([]string{"", "text", "inline", "none", "embed"}, option) || (key == "") != (option == "inline"):
		return fmt.Errorf(`expected a tag wire:"KEY", wire:"KEY?", wire:"KEY,text" for a string, wire:"KEY?,none", wire:"KEY,embed", or `+
			`wire:",inline", found %s`, quoted)
	case !slices.Contains([]string{"", "zero", "omitempty"}, jsonOption):
		return fmt.Errorf(`expected a tag poolsvc:"KEY", poolsvc:"KEY,zero" or poolsvc:"KEY,omitempty", found %s`, quoted)
	case key != "" && (!token.IsIdentifier(f.key) || keywords[f.key] || keywords[snake(f.name)]):
		return fmt.Errorf("expected a name and a key that Python and Go can have as a name, found %s and %q", snake(f.name), f.key)
	}
	element, pointer := strings.CutPrefix(f.goType, "*")
	if f.goType != "[]byte" {
		element, f.list = strings.CutPrefix(element, "[]")
	}
	var known bool
	if f.scalar, known = scalars[element]; !known {
		b, isBinary := r.binaries[element]
		f.scalar = scalar{page: "bin(" + b.size + ")", python: b.name, field: strings.ToLower(b.name) + "Field"}
		f.of = r.known[element]
		known = isBinary && !f.optional || f.of != nil && f.of.role != request && f.of.role != notice
	}
	constructor := f.constructor()
	if !known || constructor == "" || pointer && (f.of == nil || f.list) {
		return fmt.Errorf("package wire has no field of type %s yet: see field.go", f.goType)
	}
	if f.of != nil && !f.list && f.optional != pointer {
		return fmt.Errorf("expected a pointer where a structure is optional, and only there, found %s", f.goType)
	}
	return nil
}

// constructor returns the name of the function of package wire that makes the field.
func (f *field) constructor() string {
	switch {
	case f.of != nil && f.list:
		return "structsField"
	case f.of != nil && f.optional:
		return "pointerField"
	case f.of != nil:
		return "structField"
	case f.list:
		return f.scalar.list
	case f.text:
		return "textField"
	}
	return f.scalar.field
}

// snake returns the name of a field as Python and JSON write names: `WaitsFor` becomes `waits_for`, and `UIDs` becomes `uids`.
func snake(name string) string {
	var out strings.Builder
	for i, r := range name {
		if i > 0 && unicode.IsUpper(r) && unicode.IsLower(rune(name[i-1])) {
			out.WriteByte('_')
		}
		out.WriteRune(unicode.ToLower(r))
	}
	return out.String()
}

// brief returns the meaning as docs/protocol.md has it.
func (f *field) brief() string {
	first, _, _ := strings.Cut(f.meaning, ". ")
	if f.scalar.public.wireUnit != "" {
		first += ", " + f.scalar.public.wireUnit
	}
	return strings.Replace(first, "; none: ", "; left out: ", 1)
}

// said returns the field's meaning for the documentation of a public type. If the meaning has "; none: TEXT", said replaces the word "none" by the
// value that stands for none: the argument `none`, or the zero value if the argument is empty.
func (f *field) said(none string) string {
	none = cmp.Or(none, map[string]string{"0": "0", `""`: "empty"}[f.scalar.public.none], "zero")
	return strings.Replace(f.meaning, "; none: ", "; "+none+": ", 1)
}

// keywords are the keywords of Python that are valid names in Go.
var keywords = map[string]bool{
	"and": true, "as": true, "assert": true, "async": true, "await": true, "class": true, "def": true, "del": true, "elif": true,
	"except": true, "finally": true, "from": true, "global": true, "in": true, "is": true, "lambda": true, "nonlocal": true, "not": true,
	"or": true, "pass": true, "raise": true, "try": true, "while": true, "with": true, "yield": true,
}

// check connects requests with their replies, and checks the names and the keys.
func (r *reader) check() error {
	taken := map[string]string{}
	for _, s := range r.schema.structs {
		if s.wire != "" {
			name := fmt.Sprint(s.role, s.wire)
			if other := taken[name]; other != "" {
				return fmt.Errorf("%s: %s has the name %q already", s.name, other, s.wire)
			}
			taken[name] = s.name
		}
		if s.role != request {
			continue
		}
		answer := r.known[r.replies[s.name]]
		if answer == nil || answer.role != part && answer.role != reply {
			return fmt.Errorf("%s: there is no structure %s to answer it", s.name, r.replies[s.name])
		}
		answer.role = reply
		answer.answers = append(answer.answers, s)
		s.reply = answer
	}
	for _, s := range r.schema.structs {
		for _, f := range s.shown() {
			reserved := s.role == request && (f.key == "o" || f.key == "q") || s.role == reply && (f.key == "q" || f.key == "e") ||
				s.role == notice && (f.key == "n" || f.key == "q" || f.key == "e")
			if reserved {
				return fmt.Errorf("%s: %s: the key %q belongs to the envelope", s.name, f.name, f.key)
			}
			if name := f.attribute(); (s.role == request || s.role == reply) && name == "number" || s.role == reply && name == "error" {
				return fmt.Errorf("%s: %s: the name %s belongs to the envelope in Python", s.name, f.name, name)
			}
			if f.embed && (f.of == nil || f.list || f.optional || !f.of.byHand) {
				return fmt.Errorf("%s: %s: only a structure with //wire:go can be embedded", s.name, f.name)
			}
			if f.none != "" && !slices.ContainsFunc(s.fields, func(of field) bool { return of.name == f.none && of.optional }) {
				return fmt.Errorf("%s: %s: there is no optional field %s that says whether it has a value", s.name, f.name, f.none)
			}
		}
	}
	return nil
}

// with returns the structures of a role, in the order of the source.
func (s *schema) with(r role) (found []*structure) {
	for _, one := range s.structs {
		if one.role == r {
			found = append(found, one)
		}
	}
	return found
}

// oneLine returns a comment's text without line breaks and directives.
func oneLine(comment *ast.CommentGroup) string {
	return strings.Join(strings.Fields(comment.Text()), " ")
}
