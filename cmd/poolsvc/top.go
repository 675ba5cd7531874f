package main

import (
	"errors"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/top"
)

func newTop() *cobra.Command {
	var (
		socket   string
		interval time.Duration
	)
	c := &cobra.Command{
		Use:   "top",
		Short: "Watch pools, sessions and channels of a running service live",
		Long: `Watch pools, sessions and channels of a running service, live in the terminal: how many bytes each session has, how many frames a second go
through each channel, which consumers are behind, and events. The service's own user sees all, others what they may use.

The key ? explains the columns and keys. Without a terminal, use poolsvc pools, sessions, channels and buffers with --json.`,
		Args: arguments(0, 0),
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if interval < 100*time.Millisecond {
				return misused(c, "--interval %v is too short: expected 100ms or more", interval)
			}
			if !isTerminal(os.Stdin) || !isTerminal(os.Stdout) {
				return errors.New("top needs a terminal for its input and output: use poolsvc pools, sessions, channels or buffers, with --json for programs")
			}
			source := &top.Source{Socket: socket}
			defer func() { err = errors.Join(err, source.Close()) }()
			_, err = tea.NewProgram(top.New(c.Context(), source, interval), tea.WithContext(c.Context())).Run()
			if errors.Is(err, tea.ErrProgramKilled) || errors.Is(err, tea.ErrInterrupted) {
				return nil // a signal has ended the context
			}
			return err
		},
	}
	socketFlag(c, &socket)
	c.Flags().DurationVar(&interval, "interval", time.Second, "time between two updates")
	return c
}

func isTerminal(f *os.File) bool {
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
