// Command godoc writes reference pages in Markdown for Go packages, for the documentation site. A page has the comments of the public
// names. A long package has a page for each of its files, which are named after what they define. The standard library (go/doc/comment) converts the comments to Markdown. If a public name has no comment, or if a comment
// has a link to a name that does not exist, the command fails.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/build"
	"go/doc"
	"go/doc/comment"
	"go/parser"
	"go/printer"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/poolbridge/poolbridge"

// standard are methods that need no comment: those of error and fmt.Stringer, and what errors.Is asks for.
var standard = []string{"Error", "String", "Unwrap"}

func main() {
	out := flag.String("out", "", "the folder to write pages to, one for each package")
	flag.Parse()
	if err := run(*out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "godoc:", err)
		os.Exit(1)
	}
}

// run writes the pages of packages, which are named by their folder in the module.
func run(out string, folders []string) error {
	if out == "" || len(folders) == 0 {
		return errors.New("say -out FOLDER and the folders of packages, such as bridge and mempool/service")
	}
	var failed []error
	for _, folder := range folders {
		p, err := load(folder, folders)
		if err != nil {
			return err
		}
		if err := p.write(out); err != nil {
			return err
		}
		failed = append(failed, p.failed...)
	}
	return errors.Join(failed...)
}

// long is the number of lines from which a package gets several pages.
const long = 400

// write writes the page of the package to the folder out and, if it is long, a page for each file to the folder out/NAME.
func (p *page) write(out string) error {
	p.overview()
	overview := p.take()
	nouns := p.nouns()
	texts := make([]string, len(nouns))
	for i, noun := range nouns {
		p.noun(noun)
		texts[i] = p.take()
	}
	name := strings.TrimSuffix(fileName(p.folder), ".md")
	all := strings.Join(texts, "")
	if strings.Count(all, "\n") < long {
		return writePage(out, name, overview+all)
	}
	var list, menu strings.Builder
	for i, noun := range nouns {
		if err := writePage(filepath.Join(out, name), noun, fmt.Sprintf("# %s: %s\n\n%s", p.folder, noun, texts[i])); err != nil {
			return err
		}
		fmt.Fprintf(&list, "- [%s](%s/%s.md): %s\n", noun, name, noun, strings.Join(p.names(noun), ", "))
		fmt.Fprintf(&menu, "%s <%s/%s>\n", noun, name, noun)
	}
	return writePage(out, name, fmt.Sprintf("%s%s\n```{toctree}\n:hidden:\n\n%s```\n", overview, &list, &menu))
}

func writePage(folder, name, text string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(folder, name+".md"), []byte(text), 0o644) //nolint:gosec // pages are for everybody
}

func fileName(folder string) string { return strings.ReplaceAll(folder, "/", "-") + ".md" }

// page is one package on its way to a page.
type page struct {
	folder  string
	folders []string // of all packages that have pages
	fset    *token.FileSet
	pkg     *doc.Package
	printer *comment.Printer
	out     bytes.Buffer
	failed  []error
}

func load(folder string, folders []string) (*page, error) {
	p := &page{folder: folder, folders: folders, fset: token.NewFileSet()}
	found, err := build.ImportDir(folder, 0)
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, name := range slices.Concat(found.GoFiles, found.CgoFiles) {
		file, err := parser.ParseFile(p.fset, filepath.Join(folder, name), nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	if p.pkg, err = doc.NewFromFiles(p.fset, files, module+"/"+folder); err != nil {
		return nil, err
	}
	p.printer = p.pkg.Printer()
	p.printer.HeadingLevel = 2
	p.printer.HeadingID = func(*comment.Heading) string { return "" }
	p.printer.DocLinkURL = p.linkURL
	return p, nil
}

// linkURL is where a link of a comment leads: to a page of the site, else to pkg.go.dev.
func (p *page) linkURL(link *comment.DocLink) string {
	folder := p.folder
	if link.ImportPath != "" {
		inside, ours := strings.CutPrefix(link.ImportPath, module+"/")
		if !ours || !slices.Contains(p.folders, inside) {
			return link.DefaultURL("https://pkg.go.dev/")
		}
		folder = inside
	}
	return "#" + target(folder, link.Recv, link.Name)
}

// target is the name by which the site finds the heading of a declaration.
func target(folder, receiver, name string) string {
	parts := []string{"go", strings.ReplaceAll(folder, "/", "-"), receiver, name}
	return strings.Join(slices.DeleteFunc(parts, func(part string) bool { return part == "" }), ".")
}

func (p *page) take() string {
	defer p.out.Reset()
	return p.out.String()
}

func (p *page) overview() {
	p.heading(1, target(p.folder, "", ""), "package "+p.folder)
	fmt.Fprintf(&p.out, "```go\nimport %q\n```\n\n", path.Join(module, p.folder))
	p.comment("package "+p.pkg.Name, p.pkg.Doc)
	p.printer.HeadingLevel = 4 // below every declaration
}

// of is the name of the file that has a declaration, without .go.
func (p *page) of(node ast.Node) string {
	return strings.TrimSuffix(strings.TrimSuffix(filepath.Base(p.fset.Position(node.Pos()).Filename), ".go"), "_gen")
}

// nouns are the names of the files that have public names.
func (p *page) nouns() []string {
	var found []string
	for _, v := range slices.Concat(p.pkg.Consts, p.pkg.Vars) {
		found = append(found, p.of(v.Decl))
	}
	for _, f := range p.pkg.Funcs {
		found = append(found, p.of(f.Decl))
	}
	for _, t := range p.pkg.Types {
		found = append(found, p.of(t.Decl))
	}
	slices.Sort(found)
	return slices.Compact(found)
}

// names are the functions and types of a file.
func (p *page) names(noun string) []string {
	var found []string
	for _, f := range p.pkg.Funcs {
		if p.of(f.Decl) == noun {
			found = append(found, f.Name)
		}
	}
	for _, t := range p.pkg.Types {
		if p.of(t.Decl) == noun {
			found = append(found, t.Name)
		}
	}
	if len(found) == 0 {
		return []string{"constants and variables"}
	}
	return found
}

// noun writes the public names of a file.
func (p *page) noun(noun string) {
	elsewhere := func(v *doc.Value) bool { return p.of(v.Decl) != noun }
	p.values("", slices.DeleteFunc(slices.Concat(p.pkg.Consts, p.pkg.Vars), elsewhere))
	for _, f := range p.pkg.Funcs {
		if p.of(f.Decl) == noun {
			p.function(2, f)
		}
	}
	for _, t := range p.pkg.Types {
		if p.of(t.Decl) != noun {
			continue
		}
		p.heading(2, target(p.folder, "", t.Name), "type "+t.Name)
		p.fieldTargets(t)
		p.code(t.Decl)
		p.comment(t.Name, t.Doc)
		p.fields(t)
		p.alias(t)
		p.values(t.Name, slices.Concat(t.Consts, t.Vars))
		for _, f := range slices.Concat(t.Funcs, t.Methods) {
			p.function(3, f)
		}
	}
}

// alias asks for the command that shows the fields and methods of a type of another package: go doc shows only the alias.
func (p *page) alias(t *doc.Type) {
	for _, spec := range t.Decl.Specs {
		of, ok := spec.(*ast.TypeSpec).Type.(*ast.SelectorExpr)
		if !ok || !spec.(*ast.TypeSpec).Assign.IsValid() {
			continue
		}
		want := fmt.Sprintf("go doc [%s.%s]", of.X, of.Sel)
		if !strings.Contains(strings.Join(strings.Fields(t.Doc), " "), want) {
			p.failed = append(p.failed, fmt.Errorf("%s: the comment of %s does not say %q", p.folder, t.Name, want))
		}
	}
}

func (p *page) heading(level int, target, text string) {
	fmt.Fprintf(&p.out, "(%s)=\n%s %s\n\n", target, strings.Repeat("#", level), text)
}

func (p *page) function(level int, f *doc.Func) {
	name, receiver := f.Name, strings.TrimPrefix(f.Recv, "*")
	if f.Recv != "" {
		name = fmt.Sprintf("(%s) %s", f.Recv, f.Name)
	}
	p.heading(level, target(p.folder, receiver, f.Name), "func "+name)
	f.Decl.Body = nil
	p.code(f.Decl)
	if f.Doc == "" && receiver != "" && slices.Contains(standard, f.Name) {
		return
	}
	p.comment(strings.TrimPrefix(receiver+"."+f.Name, "."), f.Doc)
}

// values are constants or variables: of the package, or those that belong to a type.
func (p *page) values(of string, groups []*doc.Value) {
	for _, g := range groups {
		for _, name := range g.Names {
			fmt.Fprintf(&p.out, "(%s)=\n", target(p.folder, "", name))
		}
		p.out.WriteString("\n")
		p.code(g.Decl)
		if g.Doc == "" {
			p.valuesAlone(g)
			continue
		}
		p.comment(of, g.Doc)
	}
}

// valuesAlone asks for a comment at each public name of a group that has none itself.
func (p *page) valuesAlone(g *doc.Value) {
	for _, spec := range g.Decl.Specs {
		value := spec.(*ast.ValueSpec)
		for _, name := range value.Names {
			if name.IsExported() && value.Doc == nil && value.Comment == nil {
				p.undocumented(name.Name)
			}
		}
	}
}

// fieldTargets lets links lead to the public fields of a struct: to its declaration.
func (p *page) fieldTargets(t *doc.Type) {
	for _, spec := range t.Decl.Specs {
		of, ok := spec.(*ast.TypeSpec).Type.(*ast.StructType)
		if !ok {
			continue
		}
		for _, field := range of.Fields.List {
			for _, name := range field.Names {
				if name.IsExported() {
					fmt.Fprintf(&p.out, "(%s)=\n", target(p.folder, t.Name, name.Name))
				}
			}
		}
		p.out.WriteString("\n")
	}
}

// fields asks for a comment at each public field of a struct and at each method of an interface: its own, or one of the field before it
// in the same paragraph.
func (p *page) fields(t *doc.Type) {
	for _, spec := range t.Decl.Specs {
		var list *ast.FieldList
		switch of := spec.(*ast.TypeSpec).Type.(type) {
		case *ast.StructType:
			list = of.Fields
		case *ast.InterfaceType:
			list = of.Methods
		default:
			continue
		}
		documented, last := t.Doc != "", 0
		for _, field := range list.List {
			line := p.fset.Position(field.Pos()).Line
			own := field.Doc != nil || field.Comment != nil
			documented = own || documented && (last == 0 || line == last+1)
			last = p.fset.Position(field.End()).Line
			for _, name := range field.Names {
				if name.IsExported() && !documented {
					p.undocumented(t.Name + "." + name.Name)
				}
			}
		}
	}
}

func (p *page) code(node ast.Node) {
	p.out.WriteString("```go\n")
	config := printer.Config{Mode: printer.UseSpaces, Tabwidth: 4}
	if err := config.Fprint(&p.out, p.fset, node); err != nil {
		p.failed = append(p.failed, err)
	}
	p.out.WriteString("\n```\n\n")
}

func (p *page) comment(name, text string) {
	if strings.TrimSpace(text) == "" {
		p.undocumented(name)
		return
	}
	p.out.Write(p.printer.Markdown(p.pkg.Parser().Parse(text)))
	p.out.WriteString("\n")
}

func (p *page) undocumented(name string) {
	p.failed = append(p.failed, fmt.Errorf("%s: %s is public and has no comment: write one above it", p.folder, name))
}
