package streams

import (
	"errors"
	"os"
	"slices"
	"sync"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// Timelines has the pages and files of timelines, and says which fences nobody needs to wait for any more. A fence names its timeline by id.
// If there is no such timeline any more, the timeline is over. The zero Timelines has no timelines.
type Timelines struct {
	all  map[uint64]timeline
	most int // the greatest length of all
}

type timeline struct {
	*ledger.Timeline
	page     *mempool.Page
	file     *os.File
	readOnly *os.File // the same, for other sessions than the timeline's own
}

// Probe returns an error if this machine cannot make timelines.
var Probe = sync.OnceValue(func() error {
	file, err := shmchannel.NewFile(mempool.PageName)
	if err != nil {
		return mempool.HostError("make a timeline", err)
	}
	page, err := mempool.NewPage(file)
	if err != nil {
		return err
	}
	return errors.Join(page.Close(), file.Close())
})

// Make makes the timeline of a session that has none, of an empty memfd. It owns the file.
//
// Errors: [mempool.ErrUnavailable], [mempool.ErrOutOfMemory].
func (ts *Timelines) Make(l *ledger.Ledger, s *ledger.Session, file *os.File) error {
	page, err := mempool.NewPage(file)
	if err != nil {
		return err
	}
	return ts.add(page, file, func() *ledger.Timeline { return l.AddTimeline(s) })
}

// Adopt adds the timeline of a predecessor. It owns the file.
func (ts *Timelines) Adopt(t *ledger.Timeline, file *os.File) error {
	page, err := mempool.AdoptPage(file)
	if err != nil {
		return errors.Join(err, file.Close())
	}
	return ts.add(page, file, func() *ledger.Timeline { return t })
}

func (ts *Timelines) add(page *mempool.Page, file *os.File, of func() *ledger.Timeline) error {
	readOnly, err := shmchannel.ReadOnly(file)
	if err != nil {
		return errors.Join(mempool.HostError("open a timeline again", err), page.Close(), file.Close())
	}
	if ts.all == nil {
		ts.all = make(map[uint64]timeline)
	}
	t := of()
	ts.all[t.ID] = timeline{t, page, file, readOnly}
	return nil
}

// File returns the file of a timeline for its own session, which maps it for writing.
func (ts *Timelines) File(t *ledger.Timeline) *os.File { return ts.all[t.ID].file }

// ReadOnly returns the file of a timeline for other sessions.
func (ts *Timelines) ReadOnly(t *ledger.Timeline) *os.File { return ts.all[t.ID].readOnly }

// LetGo takes a timeline from a process that is gone, and returns the values that the timeline's words had.
func (ts *Timelines) LetGo(t *ledger.Timeline) [mempool.TimelineWords]uint64 {
	return ts.all[t.ID].page.LetGo()
}

// Remove forgets the memory of a timeline that the ledger has removed. The returned function unmaps the timeline's page and closes its file.
func (ts *Timelines) Remove(gone *ledger.Timeline) (free func() error) {
	t, there := ts.all[gone.ID]
	if !there {
		return func() error { return nil }
	}
	ledger.RemoveKey(&ts.all, &ts.most, gone.ID)
	return func() error { return errors.Join(t.page.Close(), t.file.Close(), t.readOnly.Close()) }
}

// Over says whether nobody needs to wait for f any more: f is reached, or its timeline is over.
func (ts *Timelines) Over(f mempool.Fence) bool {
	t, there := ts.all[f.Timeline]
	return !there || t.Dead || t.page.Passed(f.Word, f.Value)
}

// Failed says whether the session that writes the timeline of f has marked f as failed: the content that should be complete at f will never
// be complete. If the timeline is dead, Failed returns false: the buffers with incomplete content are then already marked as failed.
func (ts *Timelines) Failed(f mempool.Fence) bool {
	t, there := ts.all[f.Timeline]
	return there && !t.Dead && t.page.Failed(f.Word, f.Value)
}

// AnyFailed says whether the session has marked any known fence of its timeline as failed.
func (ts *Timelines) AnyFailed(t *ledger.Timeline) bool {
	return slices.ContainsFunc(t.Fences(), ts.Failed)
}

// Reason returns the reason that a timeline's session gave why content at fences of a word has failed.
func (ts *Timelines) Reason(f mempool.Fence) string { return ts.all[f.Timeline].page.Reason(f.Word) }

// Owed says whether some known fence of the timeline, which may be nil, is not reached yet.
func (ts *Timelines) Owed(t *ledger.Timeline) bool {
	if t == nil || t.Dead {
		return false
	}
	page := ts.all[t.ID].page
	for word, value := range t.Promised {
		if value > 0 && !page.Passed(uint64(word), value) {
			return true
		}
	}
	return false
}

// Outstanding returns the known fences of the timeline, which may be nil, that are not reached yet.
func (ts *Timelines) Outstanding(t *ledger.Timeline) ledger.Fences {
	if t == nil || t.Dead {
		return nil
	}
	return ts.Pending(t.Fences())
}

// Pending drops the fences that are over. It changes fs in place.
func (ts *Timelines) Pending(fs ledger.Fences) ledger.Fences {
	return fs.Drop(ts.Over)
}

// PendingOrFailed drops the fences that are over, except the fences that have failed: readers must learn that the content failed. It changes fs
// in place.
func (ts *Timelines) PendingOrFailed(fs ledger.Fences) ledger.Fences {
	return fs.Drop(func(f mempool.Fence) bool { return ts.Over(f) && !ts.Failed(f) })
}

// Add returns the fences of fs and of `done`, without the fences that are over. If Add kept the fences that are over, a buffer with many
// readers, one after the other, would collect a fence for each reader.
func (ts *Timelines) Add(fs, done ledger.Fences) ledger.Fences {
	if len(done) == 0 {
		return fs
	}
	return ts.Pending(fs.Union(done))
}

// Quiet says whether all fences of b are reached, and drops those that are.
func (ts *Timelines) Quiet(b *ledger.Block) bool {
	b.SetFences(ts.Pending(b.Fences))
	return len(b.Fences) == 0
}
