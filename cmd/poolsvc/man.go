package main

import (
	"bytes"
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
	return os.WriteFile(filepath.Join(folder, name+".1"), text, 0o644)
}

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

var escaper = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `_`, `\_`, `<`, `\<`, `>`, `\>`, "`", "\\`", `[`, `\[`, `]`, `\]`)

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
