package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
)

func newMan() *cobra.Command {
	return &cobra.Command{
		Use:   "man FOLDER",
		Short: "Write the man pages of all commands",
		Long: `Write a man page for each command into a folder, and make the folder if it is missing. Wheels contain the man pages and the shell
completion. If you built the program yourself:

  poolsvc man ~/.local/share/man/man1
  poolsvc completion bash > ~/.local/share/bash-completion/completions/poolsvc`,
		Args: arguments(1, 1),
		RunE: func(_ *cobra.Command, args []string) error { return writeManPages(args[0]) },
	}
}

// defaultsOfPages has the texts that man pages show for defaults that depend on the machine or the user.
var defaultsOfPages = map[string]string{"socket": "$POOLBRIDGE_SOCKET", "python": "python3"}

// writeManPages writes a man page for each command. The content of the pages does not depend on the machine. The date in the pages is
// $SOURCE_DATE_EPOCH if it is set, and the current time otherwise.
func writeManPages(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	root := newRoot()
	root.DisableAutoGenTag = true
	plain(root)
	released, _, _ := strings.Cut(version, "+") // the name of a commit is too long for the foot of a page
	header := doc.GenManHeader{Section: "1", Source: "poolbridge " + released, Manual: "poolbridge"}
	return writeManPage(root, header, folder)
}

// writeManPage writes the man page of a command and the pages of its subcommands.
func writeManPage(c *cobra.Command, header doc.GenManHeader, folder string) error {
	for _, below := range c.Commands() {
		if !below.IsAvailableCommand() || below.IsAdditionalHelpTopicCommand() {
			continue
		}
		if err := writeManPage(below, header, folder); err != nil {
			return err
		}
	}
	name := strings.ReplaceAll(c.CommandPath(), " ", "-")
	header.Title = strings.ToUpper(name)
	var page bytes.Buffer
	if err := doc.GenMan(c, &header, &page); err != nil {
		return err
	}
	text := bytes.ReplaceAll(page.Bytes(), []byte("[=]"), nil) // cobra writes [=] after switches
	if !c.HasParent() {
		before, after, _ := strings.Cut(string(text), ".SH SEE ALSO")
		text = []byte(before + overview(c) + ".SH SEE ALSO" + after)
	}
	return os.WriteFile(filepath.Join(folder, name+".1"), text, 0o644)
}

// overview returns the sections that only the page poolsvc(1) has: the commands with their purpose, files, variables and examples.
func overview(root *cobra.Command) string {
	var b strings.Builder
	section := func(title string, rows [][2]string) {
		fmt.Fprintf(&b, ".SH %s\n", title)
		for _, row := range rows {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fP\n%s\n", roff.Replace(row[0]), roff.Replace(row[1]))
		}
	}
	var rows [][2]string
	var add func(c *cobra.Command)
	add = func(c *cobra.Command) {
		for _, below := range c.Commands() {
			switch {
			case !below.IsAvailableCommand() || below.IsAdditionalHelpTopicCommand():
			case below.HasAvailableSubCommands():
				add(below)
			default:
				rows = append(rows, [2]string{strings.TrimPrefix(below.CommandPath(), root.Name()+" "), unescape(below.Short)})
			}
		}
	}
	add(root)
	section("COMMANDS", rows)
	section("FILES", [][2]string{
		{"/etc/poolbridge/poolsvc.yaml", "Configuration of the service that systemd starts. poolsvc config check says what is wrong in it."},
		{"/run/poolbridge/poolsvc.sock", "Socket of the service that systemd starts."},
		{"$XDG_RUNTIME_DIR/poolbridge/poolsvc.sock", "Socket of a service that a user starts, if $XDG_RUNTIME_DIR is set."},
	})
	rows = [][2]string{
		{"POOLBRIDGE_SOCKET", "Socket of the service, for clients and for poolsvc serve."},
		{"POOLBRIDGE_CONFIG", "Configuration file of poolsvc serve and poolsvc config check."},
	}
	for _, s := range settings() {
		if s.flag != "socket" {
			rows = append(rows, [2]string{s.variable(), "The same as --" + s.flag + " of poolsvc serve."})
		}
	}
	section("ENVIRONMENT", append(rows, [2]string{"NO_COLOR", "If it is set, nothing is in colour."}))
	section("EXAMPLES", [][2]string{
		{"poolsvc verify", "Check that memory can be shared on this machine."},
		{"poolsvc serve --pool " + poolExample, "Run a service with one pool of memory of the CPU."},
		{"poolsvc top", "Watch what the programs of this machine do."},
		{"poolsvc channel show camera --watch", "See which consumer of a channel is behind."},
		{"poolsvc events --follow --kind writer-died", "Wait for programs that die before they have written what others read."},
	})
	return b.String()
}

// roff escapes a text for a man page.
var roff = strings.NewReplacer(`\`, `\e`, "-", `\-`)

// valueWord is the value of a flag that has no default. A man page shows a word for this value.
type valueWord struct{ pflag.Value }

// Type returns "". If it returned the name of a type that cobra knows, cobra would put quotation marks around the value on the man page.
func (valueWord) Type() string { return "" }

// plain escapes the texts of a command and its subcommands, because cobra reads the texts as Markdown.
func plain(c *cobra.Command) {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	c.Short, c.Long = literal(c.Short), literal(c.Long)
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if slices.Contains([]string{"", "0", "0s", "false", "[]"}, f.DefValue) {
			word, _ := pflag.UnquoteUsage(f)
			word = strings.TrimSuffix(strings.TrimRight(word, "0123456789"), "Array") // such as int32 or stringArray
			f.DefValue, f.Value = strings.ToUpper(word), valueWord{f.Value}
		}
		f.Usage = literal(f.Usage)
		if text, ok := defaultsOfPages[f.Name]; ok {
			f.DefValue = text
		}
	})
	for _, below := range c.Commands() {
		plain(below)
	}
}

var unescaper = strings.NewReplacer(`\\`, `\`, `\*`, `*`, `\_`, `_`, `\<`, `<`, `\>`, `>`, "\\`", "`", `\[`, `[`, `\]`, `]`)

var escaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `_`, `\_`, `<`, `\<`, `>`, `\>`, "`", "\\`", `[`, `\[`, `]`, `\]`)

// unescape undoes literal, for a text of one line.
func unescape(text string) string { return unescaper.Replace(text) }

// literal escapes a text for Markdown. An indented line becomes a line of code, and all other lines become plain text.
func literal(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "  ") {
			b.WriteString("  " + line) // Markdown needs four spaces or more
		} else {
			b.WriteString(escaper.Replace(line))
		}
	}
	return b.String()
}
