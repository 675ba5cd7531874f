package display

import (
	"fmt"
	"iter"
	"time"

	"github.com/poolbridge/poolbridge/mempool"
)

// All returns the entries of a list of the service.
func All[T any](entries iter.Seq2[T, error]) (list []T, err error) {
	for one, err := range entries {
		if err != nil {
			return nil, err
		}
		list = append(list, one)
	}
	return list, nil
}

// Users returns the sessions of a list without those that only watch, and without the session `own` of the command that asks: an older service
// does not say that it only watches.
func Users(own uint64, sessions iter.Seq2[mempool.SessionInfo, error]) iter.Seq2[mempool.SessionInfo, error] {
	return func(yield func(mempool.SessionInfo, error) bool) {
		for one, err := range sessions {
			if (err != nil || one.ID != own && !one.Watches) && !yield(one, err) {
				return
			}
		}
	}
}

// Use says what a buffer is used for, as the page does.
func Use(b mempool.BufferInfo) string {
	switch {
	case b.InChannel:
		return "in a channel"
	case b.Writer != 0:
		return "written"
	case b.Reads > 0:
		return "read"
	}
	return "published"
}

// Name returns the name and version of a buffer's newest publication.
func Name(name string, version uint64, published bool) string {
	switch text := fmt.Sprintf("%s v%d", name, version); {
	case name == "":
		return "-"
	case published:
		return text
	default:
		return text + " (former)"
	}
}

// State returns the state of a channel as a word: closed, full, where the next frame waits, fails or drops another, or open.
func State(ch mempool.ChannelInfo) string {
	switch {
	case ch.Closed:
		return "closed"
	case ch.Used >= uint64(ch.Capacity):
		return "full"
	}
	return "open"
}

// Waits says what a session waits for, and how long the session has waited.
func Waits(what string, waited time.Duration) string {
	if what == "" {
		return "-"
	}
	return Printable(what) + " (" + Age(waited) + ")"
}

// Session returns the id of a session with its program and its process.
func Session(id uint64, program string, pid int32) string {
	return fmt.Sprintf("session %d (%s, pid %d)", id, Printable(program), pid)
}
