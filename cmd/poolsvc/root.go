package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/internal/similar"
	"github.com/poolbridge/poolbridge/mempool"
)

// errReported says that the user has already seen what went wrong.
var errReported = errors.New("reported")

// usageError is an error in the command line.
type usageError struct{ text string }

func (e *usageError) Error() string { return e.text }

// misused makes a usageError that also names the help of a command.
func misused(c *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...) + ": see " + c.CommandPath() + " --help"}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "poolsvc",
		Short: "GPU memory that one process owns and many use",
		Long: `poolsvc owns memory pools and lends buffers from them to other processes, in Go and in Python, without a copy.

Start with poolsvc verify: it checks that memory can be shared on this machine.

The service listens on $POOLBRIDGE_SOCKET, else on poolbridge/poolsvc.sock below $XDG_RUNTIME_DIR, else on
poolbridge-UID/poolsvc.sock below $TMPDIR or /tmp.

The exit status is 2 if the command line is wrong.`,
		Version:       version,
		Args:          arguments(0, 0),
		RunE:          func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetVersionTemplate(versionLine())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error { return misused(c, "%v", err) })
	root.AddCommand(newLists()...)
	root.AddCommand(newServe(), newBooks(), newConfig(), newVerify(), newPools(), newEvents(), newTop(), newStatus(), newUpgrade(), newPool(), newChannel(), newSession(),
		newExport(), newImport(), newLoad(), newSave(), newUnpublish(), newDoctor(), newBench(), newBenchConsumer(), newBenchBare(), newWorker(), newMan(), newVersion())
	return root
}

// arguments returns a function that checks the number of arguments of a command. This number must be from `least` to `most`. The error says
// how many arguments the command expects.
func arguments(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		if flag := c.Flags().Lookup("watch"); flag != nil && flag.Changed && len(args) > 0 && flag.Value.Set(args[0]) == nil {
			return misused(c, "the value of --watch comes after an equals sign: --watch=%s", args[0])
		}
		if c.HasSubCommands() {
			names := func(yield func(string) bool) {
				for _, one := range c.Commands() {
					if !yield(one.Name()) {
						return
					}
				}
			}
			return misused(c, "%s has no command %q%s", c.CommandPath(), args[0], similar.Hint(args[0], names))
		}
		if most == 0 {
			return misused(c, "%s takes no arguments, not %q", c.CommandPath(), args)
		}
		usage := strings.TrimSuffix(c.UseLine(), " [flags]")
		return misused(c, "expected `%s`, not the arguments %q", usage, args)
	}
}

// kindsOf returns the kinds of memory in the values of --kind.
func kindsOf(texts []string) ([]mempool.Kind, error) {
	var kinds []mempool.Kind
	for _, text := range texts {
		if !slices.Contains(mempool.Kinds(), mempool.Kind(text)) {
			return nil, fmt.Errorf("--kind %q is no kind of memory: expected one of %v", text, mempool.Kinds())
		}
		kinds = append(kinds, mempool.Kind(text))
	}
	return kinds, nil
}

// complete sets the values that shells complete for a flag.
func complete(c *cobra.Command, flag string, values ...string) {
	if err := c.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
		panic(err) // the command has no such flag
	}
}

// completeKinds sets the values that shells complete for --kind.
func completeKinds(c *cobra.Command) {
	var names []string
	for _, kind := range mempool.Kinds() {
		names = append(names, string(kind))
	}
	complete(c, "kind", names...)
}

// socketFlag adds --socket to a command.
func socketFlag(c *cobra.Command, path *string) {
	c.Flags().StringVar(path, "socket", bridge.DefaultSocket(), "path of the service's socket")
}

// writeJSON prints v as indented JSON.
func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(display.SafeJSON(w))
	e.SetIndent("", "  ")
	return e.Encode(v)
}
