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

// page returns the text of docs/protocol.md with new lists. The argument `page` is the present text of that file. Each list is between
// two HTML comments, which name it. There is a list for each structure, one of the requests and one of the notices.
func (s *schema) page(page []byte) ([]byte, error) {
	lists := map[string]string{"Requests": s.requests(), "Notices": s.notices()}
	for _, one := range s.with(part) {
		lists[one.name] = one.list()
	}
	var strange error
	out := generated.ReplaceAllFunc(page, func(place []byte) []byte {
		name := string(generated.FindSubmatch(place)[1])
		list, ok := lists[name]
		if !ok {
			strange = fmt.Errorf("the page has a place for %s: there is no such structure, or it has a second place", name)
		}
		delete(lists, name)
		return fmt.Appendf(nil, "<!-- make generate: %s -->\n\n%s\n<!-- /make generate -->", name, list)
	})
	if missing := slices.Sorted(maps.Keys(lists)); strange == nil && len(missing) > 0 {
		strange = fmt.Errorf("the page lacks <!-- make generate: %s --> and, some lines below, <!-- /make generate -->", missing[0])
	}
	return out, strange
}

// list returns the keys of a structure.
func (s *structure) list() string {
	var out bytes.Buffer
	for _, f := range s.fields {
		fmt.Fprintf(&out, "- %s\n", f.line())
	}
	return out.String()
}

// requests returns the requests with their keys. An arrow marks the keys of a reply, which are listed once.
func (s *schema) requests() string {
	var out bytes.Buffer
	for _, m := range s.with(request) {
		fmt.Fprintf(&out, "- **`%s`** %s\n", m.wire, m.doc)
		for _, f := range m.fields {
			fmt.Fprintf(&out, "  - %s\n", f.line())
		}
		if first := m.reply.answers[0]; first != m && len(m.reply.fields) > 0 {
			fmt.Fprintf(&out, "  - → as `%s`\n", first.wire)
			continue
		}
		for _, f := range m.reply.fields {
			fmt.Fprintf(&out, "  - → %s\n", f.line())
		}
	}
	return out.String()
}

// notices returns the notices with their keys.
func (s *schema) notices() string {
	var out bytes.Buffer
	for _, m := range s.with(notice) {
		fmt.Fprintf(&out, "- **`%s`** %s\n", m.wire, m.doc)
		for _, f := range m.shown() {
			fmt.Fprintf(&out, "  - %s\n", f.line())
		}
	}
	return out.String()
}

// line returns a field's key, type and meaning.
func (f *field) line() string {
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
	return fmt.Sprintf("`%s` %s: %s", f.key, name, f.brief())
}
