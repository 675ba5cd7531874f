package main

import (
	"bytes"
	"fmt"
	"go/format"
	"strings"
	"unicode/utf8"
)

// This file writes the public structures in Go: their types in package mempool, the functions that convert them, and the functions that
// make JSON of them.

const goColumns = 140

// public returns the public structures, in the order of the source.
func (s *schema) public() (found []*structure) {
	for _, one := range s.structs {
		if one.public {
			found = append(found, one)
		}
	}
	return found
}

// publicFields returns the fields that the public structure has. A structure that is not public, or behind a pointer, is only in messages.
func (s *structure) publicFields() (found []*field) {
	for i := range s.fields {
		if f := &s.fields[i]; f.of == nil || (f.of.public || f.of.byHand) && !strings.HasPrefix(f.goType, "*") {
			found = append(found, f)
		}
	}
	return found
}

// types writes the types of package mempool.
func (s *schema) types() ([]byte, error) {
	var out bytes.Buffer
	for _, one := range s.public() {
		if one.byHand {
			continue
		}
		fmt.Fprintln(&out)
		wrapTo(goColumns, &out, "// ", one.name+" "+one.doc)
		fmt.Fprintf(&out, "type %s struct {\n", one.name)
		for _, f := range one.publicFields() {
			f.declare(&out)
		}
		fmt.Fprintln(&out, "}")
	}
	return goFile("mempool", out.Bytes(), "time")
}

// declare writes the field of a public type, with its meaning behind it, or above it if the meaning is long.
func (f *field) declare(out *bytes.Buffer) {
	line := fmt.Sprintf("%s %s", f.name, f.goPublic())
	if f.embed {
		line = f.of.name
	}
	if meaning := f.said(""); strings.Contains(meaning, ". ") || utf8.RuneCountInString(line+meaning) > goColumns-30 {
		wrapTo(goColumns-4, out, "// ", upper(meaning)+".")
		fmt.Fprintln(out, line)
	} else {
		fmt.Fprintf(out, "%s // %s\n", line, meaning)
	}
}

// goPublic returns the field's type in package mempool.
func (f *field) goPublic() string {
	name := f.scalar.public.golang
	if f.of != nil {
		name = f.of.name
	}
	if f.list {
		name = "[]" + name
	}
	return name
}

// conversions writes the functions of package convert.
func (s *schema) conversions() ([]byte, error) {
	var out bytes.Buffer
	for _, one := range s.public() {
		if one.byHand {
			continue
		}
		fmt.Fprintf(&out, "\n// %s converts a structure that came in a message.\nfunc %s(e wire.%s) mempool.%s {\nreturn mempool.%s{\n",
			one.name, one.name, one.name, one.name, one.name)
		for _, f := range one.publicFields() {
			name, value := f.name, "e."+f.name
			if f.embed {
				name = f.of.name
			}
			fmt.Fprintf(&out, "%s: %s,\n", name, f.converted(value, f.scalar.public.toGo, ""))
		}
		fmt.Fprintf(&out, "}\n}\n\n// Wire%s converts a structure of package mempool to package wire.\nfunc Wire%s(e mempool.%s) wire.%s {\nreturn wire.%s{\n",
			one.name, one.name, one.name, one.name, one.name)
		for _, f := range one.publicFields() {
			value := "e." + f.name
			if f.embed {
				value = "e." + f.of.name
			}
			fmt.Fprintf(&out, "%s: %s,\n", f.name, f.converted(value, f.scalar.public.toWire, "Wire"))
		}
		fmt.Fprint(&out, "}\n}\n")
	}
	return goFile("convert", out.Bytes(), "github.com/poolbridge/poolbridge/bridge/wire", "github.com/poolbridge/poolbridge/mempool")
}

// converted returns the text of a Go expression that converts the expression `value`. A structure, or each structure of a list, is converted
// by the function whose name is the prefix and the structure's name; another type by the function `scalar`, or not at all if that is empty.
func (f *field) converted(value, scalar, prefix string) string {
	switch {
	case f.of != nil && f.list:
		return fmt.Sprintf("each(%s, %s%s)", value, prefix, f.of.name)
	case f.of != nil:
		return fmt.Sprintf("%s%s(%s)", prefix, f.of.name, value)
	case scalar != "":
		return fmt.Sprintf("%s(%s)", scalar, value)
	}
	return value
}

// json writes the functions of poolsvc that make JSON of public structures.
func (s *schema) json() ([]byte, error) {
	var out bytes.Buffer
	for _, one := range s.public() {
		if one.byHand {
			continue
		}
		var always, sometimes bytes.Buffer
		named := false // whether the structure has the name of a pool
		condition := ""
		for _, f := range one.jsonFields() {
			key, value, names := f.json()
			named = named || names
			if f.jsonIf == "" {
				fmt.Fprintf(&always, "%s: %s,\n", key, value)
				continue
			}
			if condition != f.jsonIf {
				if condition != "" {
					fmt.Fprintln(&sometimes, "}")
				}
				condition = f.jsonIf
				fmt.Fprintf(&sometimes, "if %s {\n", one.hasValue(condition))
			}
			fmt.Fprintf(&sometimes, "out[%s] = %s\n", key, value)
		}
		if condition != "" {
			fmt.Fprintln(&sometimes, "}")
		}
		parameter := "_"
		if named {
			parameter = "l"
		}
		fmt.Fprintf(&out, "\nfunc json%s(e mempool.%s, %s *listed) map[string]any {\nout := map[string]any{\n%s}\n%sreturn out\n}\n",
			one.name, one.name, parameter, &always, &sometimes)
	}
	return goFile("main", out.Bytes(), "time", "github.com/poolbridge/poolbridge/mempool")
}

// jsonFields returns the fields that JSON has, with those of embedded structures.
func (s *structure) jsonFields() (found []*field) {
	for _, f := range s.publicFields() {
		switch {
		case f.embed:
			found = append(found, f.of.jsonFields()...)
		case f.jsonKey != "-":
			found = append(found, f)
		}
	}
	return found
}

// json returns the key and the value of a field as Go expressions, and whether the value is the name of the pool whose id the field has.
func (f *field) json() (key, value string, names bool) {
	key, value = fmt.Sprintf("%q", f.jsonKey), "e."+f.name
	switch {
	case f.of != nil && f.of.name == "Tensor":
		return `"dtype"`, value + ".DType,\n\"shape\": shape(" + value + "),\n\"layout_bytes\": " + value + ".LayoutBytes", false
	case f.list:
		return key, "append(" + f.goPublic() + "{}, " + value + "...)", false
	case f.name == "Pool" && f.goType == "uint64":
		return key, "l.pool(" + value + ")", true
	case f.goType == "Time":
		return key, value + ".UTC().Format(time.RFC3339Nano)", false
	case f.goType == "Duration":
		return key, value + ".Seconds()", false
	}
	return key, value, false
}

// hasValue returns the Go condition that the field of this name does not have the zero value.
func (s *structure) hasValue(name string) string {
	for i := range s.fields {
		if f := &s.fields[i]; f.name == name {
			if f.scalar.public.none == "" {
				return "!e." + name + ".IsZero()"
			}
			return "e." + name + " != " + f.scalar.public.none
		}
	}
	return ""
}

// goFile returns the Go file of a package with these declarations, and with those imports that they use.
func goFile(name string, file []byte, paths ...string) ([]byte, error) {
	var imports strings.Builder
	for _, path := range paths {
		last := path[strings.LastIndex(path, "/")+1:]
		if !bytes.Contains(file, []byte(last+".")) {
			continue
		}
		if strings.Contains(path, "/") && imports.Len() > 0 && !strings.Contains(imports.String(), "github.com") {
			imports.WriteString("\n")
		}
		fmt.Fprintf(&imports, "%q\n", path)
	}
	if imports.Len() > 0 {
		file = fmt.Appendf(nil, "import (\n%s)\n%s", &imports, file)
	}
	return format.Source(fmt.Appendf(nil, "// %s\n\npackage %s\n\n%s", mark, name, file))
}
