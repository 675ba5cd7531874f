package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"text/template"
)

// This file writes the public structures in Python: for each of them, a class and a function that makes the class of a message.

// entriesTemplate is the part of the Python module that is the same for all public structures.
//
//go:embed entries.py.tmpl
var entriesTemplate string

var inBackticks = regexp.MustCompile("`([^`]+)`")

// attribute is an attribute of a public class in Python.
type attribute struct {
	name, annotation, meaning string
	value                     string // the expression that makes the attribute of the message `of`
}

func (s *schema) entries() ([]byte, error) {
	t, err := template.New("entries.py").Parse(entriesTemplate)
	if err != nil {
		return nil, err
	}
	var classes strings.Builder
	var literals []string
	for _, one := range s.public() {
		attributes := one.attributes("of", "")
		base := "Shown"
		if one.name == "PoolInfo" {
			base = "ShownPool"
		}
		fmt.Fprintf(&classes, "\n\n@dataclass(frozen=True, slots=True)\nclass %s(%s):\n", one.name, base)
		var below strings.Builder
		below.WriteString("    Attributes\n    ----------\n")
		for _, a := range attributes {
			fmt.Fprintf(&below, "    %s\n", a.name)
			wrap(&below, "        ", a.meaning)
		}
		one.docstringWith(&classes, strings.TrimSuffix(below.String(), "\n"))
		for i, a := range attributes {
			if i == 0 {
				classes.WriteString("\n")
			}
			fmt.Fprintf(&classes, "    %s: %s\n", a.name, a.annotation)
		}
		fmt.Fprintf(&classes, "\n\ndef %s(of: _messages.%s) -> %s:\n    \"\"\"Make a `%s` of a message.\"\"\"\n    return %s(\n",
			one.pythonFunction(), one.name, one.name, one.name, one.name)
		for _, a := range attributes {
			fmt.Fprintf(&classes, "        %s=%s,\n", a.name, a.value)
			if strings.HasPrefix(a.value, "cast(") {
				literals = append(literals, a.annotation)
			}
		}
		classes.WriteString("    )\n")
	}
	slices.Sort(literals)
	var out bytes.Buffer
	err = t.Execute(&out, map[string]any{"Mark": mark, "Classes": classes.String(), "Literals": strings.Join(slices.Compact(literals), ", ")})
	return out.Bytes(), err
}

// pythonFunction returns the name of the function that makes the public class of a message.
func (s *structure) pythonFunction() string { return snake(s.name) }

// attributes returns the attributes of the public class. `of` is the expression of the message.
func (s *structure) attributes(of, prefix string) (found []attribute) {
	for _, f := range s.publicFields() {
		value := of + "." + f.attribute()
		name, annotation := f.attribute(), f.scalar.public.python
		switch {
		case f.embed:
			found = append(found, f.of.attributes(value, prefix)...)
			continue
		case f.of != nil && f.of.name == "Tensor":
			for i := range f.of.fields {
				part := &f.of.fields[i]
				switch part.name {
				case "DType":
					found = append(found, attribute{"dtype_name", "str", `Element type, such as ` + "``\"float32\"``.", value + "." + part.attribute()})
				case "Shape":
					found = append(found, attribute{"shape", "tuple[int, ...]", "Elements along each axis; of several arrays, the bytes of the buffer.", value + "." + part.attribute()})
				case "LayoutBytes":
					found = append(found, attribute{part.attribute(), "int", "Bytes at the end of a buffer of several arrays that describe them (see " +
						"`Client.get_dict`); 0 for one array.", value + "." + part.attribute()})
				}
			}
			continue
		case f.of != nil && f.list:
			annotation = "tuple[" + f.of.name + ", ...]"
			value = fmt.Sprintf("tuple(map(%s, %s))", f.of.pythonFunction(), value)
		case f.of != nil:
			annotation = f.of.name
			value = fmt.Sprintf("%s(%s)", f.of.pythonFunction(), value)
		case f.list:
			annotation = "tuple[" + annotation + ", ...]"
		}
		plain := value
		if format := f.scalar.public.fromWire; format != "" {
			value = fmt.Sprintf(format, value)
		}
		switch {
		case f.none == f.name && value == plain:
			value += " or None"
		case f.none != "":
			value += fmt.Sprintf(" if %s.%s else None", of, s.field(f.none).attribute())
		}
		none := ""
		if f.none != "" {
			none = "None"
			annotation += " | None"
		}
		meaning := upper(f.said(none))
		if unit := f.scalar.public.unit; unit != "" {
			meaning = inserted(meaning, ", "+unit)
		}
		quoted := "``$1``"
		if f.scalar.public.toGo != "" && f.scalar.zero == `""` { // the words are values of the field
			quoted = "``\"$1\"``"
		}
		found = append(found, attribute{name, annotation, inBackticks.ReplaceAllString(meaning, quoted) + ".", value})
	}
	return found
}

// field returns the field of this name.
func (s *structure) field(name string) *field {
	i := slices.IndexFunc(s.fields, func(f field) bool { return f.name == name })
	return &s.fields[i]
}

// inserted inserts a text behind the first statement of a meaning.
func inserted(meaning, text string) string {
	end := len(meaning)
	for _, stop := range []string{"; ", ". "} {
		if i := strings.Index(meaning, stop); i >= 0 {
			end = min(end, i)
		}
	}
	return meaning[:end] + text + meaning[end:]
}
