package main

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
)

// generated matches a part of docs/protocol.md that this program writes.
var generated = regexp.MustCompile(`(?s)<!-- make generate: (\w+) -->\n.*?<!-- /make generate -->`)

// page returns the text of docs/protocol.md with new tables. The argument `page` is the present text of that file. Each table is between
// two HTML comments, which name the table. There is a table for each structure, a table of the requests and a table of the notices.
func (s *schema) page(page []byte) ([]byte, error) {
	tables := map[string]string{"Requests": s.requests(), "Notices": s.notices()}
	for _, one := range s.with(part) {
		tables[one.name] = one.table()
	}
	var strange error
	out := generated.ReplaceAllFunc(page, func(place []byte) []byte {
		name := string(generated.FindSubmatch(place)[1])
		table, ok := tables[name]
		if !ok {
			strange = fmt.Errorf("the page has a place for %s: there is no such structure, or it has a second place", name)
		}
		delete(tables, name)
		return fmt.Appendf(nil, "<!-- make generate: %s -->\n\n%s\n<!-- /make generate -->", name, table)
	})
	if missing := slices.Sorted(maps.Keys(tables)); strange == nil && len(missing) > 0 {
		strange = fmt.Errorf("the page lacks <!-- make generate: %s --> and, some lines below, <!-- /make generate -->", missing[0])
	}
	return out, strange
}

// table returns the table of a structure.
func (s *structure) table() string {
	var out bytes.Buffer
	fmt.Fprint(&out, "| key, type | meaning |\n|---|---|\n")
	for _, f := range s.fields {
		fmt.Fprintf(&out, "| %s |\n", f.cells())
	}
	return out.String()
}

// requests returns the table of the requests. A row in bold begins an operation; an arrow marks the keys of its reply.
func (s *schema) requests() string {
	var out bytes.Buffer
	fmt.Fprint(&out, "| key, type | meaning |\n|---|---|\n")
	for _, m := range s.with(request) {
		fmt.Fprintf(&out, "| **`%s`** | %s |\n", m.wire, upper(m.doc))
		for _, f := range m.fields {
			fmt.Fprintf(&out, "| %s |\n", f.cells())
		}
		for _, f := range m.reply.fields {
			fmt.Fprintf(&out, "| → %s |\n", f.cells())
		}
	}
	return out.String()
}

// notices returns the table of the notices. A row in bold begins a notice.
func (s *schema) notices() string {
	var out bytes.Buffer
	fmt.Fprint(&out, "| key, type | meaning |\n|---|---|\n")
	for _, m := range s.with(notice) {
		fmt.Fprintf(&out, "| **`%s`** | %s |\n", m.wire, upper(m.doc))
		for _, f := range m.shown() {
			fmt.Fprintf(&out, "| %s |\n", f.cells())
		}
	}
	return out.String()
}

// cells returns a field's key and type, and its meaning.
func (f *field) cells() string {
	name := f.scalar.page
	if f.of != nil {
		name = f.of.name
	}
	if f.list {
		name = "[" + name + "]"
	}
	if f.optional {
		name += "?"
	}
	return fmt.Sprintf("`%s` %s | %s", f.key, name, f.meaning)
}
