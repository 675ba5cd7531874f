package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
)

// view is the common part of the commands that show something of a service, once or repeatedly.
type view struct {
	socket string
	json   bool
	watch  float64 // seconds between two updates; 0: show once
}

// shortestWatch and longestWatch are the least and the greatest value of --watch, in seconds.
const shortestWatch, longestWatch = 0.1, 86400

func (v *view) flags(c *cobra.Command) {
	socketFlag(c, &v.socket)
	c.Flags().BoolVar(&v.json, "json", false, "print JSON; with --watch one document a line")
	c.Flags().Float64Var(&v.watch, "watch", 0, "show it again after so many seconds (0.1 to 86400; without a value 2), until interrupted")
	c.Flags().Lookup("watch").NoOptDefVal = "2"
}

// show calls draw and prints the text that draw writes, once or repeatedly.
func (v *view) show(c *cobra.Command, draw func(ctx context.Context, client *bridge.Client, out io.Writer) error) (err error) {
	if c.Flags().Changed("watch") && !(v.watch >= shortestWatch && v.watch <= longestWatch) { // NaN fails both comparisons
		return misused(c, "--watch=%v: expected %v to %v seconds", v.watch, shortestWatch, longestWatch)
	}
	ctx := c.Context()
	client, err := bridge.Dialer{Watch: true}.Dial(ctx, v.socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	if v.watch == 0 {
		return draw(ctx, client, display.Coloured(c.OutOrStdout()))
	}
	redraws := !v.json && isTerminal(os.Stdout)
	for {
		var page bytes.Buffer
		switch {
		case redraws:
			page.WriteString("\x1b[H\x1b[2J")
			fmt.Fprintf(&page, "every %v s: %s  %s\n\n", v.watch, c.CommandPath(), time.Now().Format(time.TimeOnly))
		case !v.json:
			fmt.Fprintln(&page, time.Now().Format(time.DateTime))
		}
		if err := draw(ctx, client, &page); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if !redraws && !v.json {
			fmt.Fprintln(&page)
		}
		if _, err := page.WriteTo(display.Coloured(c.OutOrStdout())); err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(v.watch * float64(time.Second))):
		case <-ctx.Done():
			return nil
		}
	}
}

// writeJSON prints a document as JSON. With the flag --watch, more documents follow, so writeJSON prints each document on one line.
func (v *view) writeJSON(out io.Writer, document any) error {
	if v.watch > 0 {
		return json.NewEncoder(display.SafeJSON(out)).Encode(document)
	}
	return writeJSON(out, document)
}
