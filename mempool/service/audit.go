package service

import (
	"strings"

	"github.com/poolbridge/poolbridge/mempool/service/books"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// audit looks for faults in the ledger of a service. A check reads all records. So an audit checks a ledger of n records at every n/16th of the
// first 4,096 calls, and later at every n+32nd call. A call before which no change was noted counts for an eighth: most requests change
// nothing, but a change may be missing in the notes.
type audit struct {
	svc            *Service
	noted          ledger.Records // what the noted changes add up to
	eighths, calls int
}

// look says which rules of the ledger are broken. The caller holds Service.mu.
func (a *audit) look() (fault string) {
	s := a.svc
	a.eighths += 8
	if s.books == nil {
		changes := s.ledger.AppendChanges(nil)
		if err := a.noted.Apply(changes); err != nil {
			return err.Error()
		}
		if len(changes) == 0 {
			a.eighths -= 7
		}
	}
	due := max(s.ledger.Records()/16, 1)
	if a.calls++; a.calls > 4096 {
		due = s.ledger.Records() + 32
	}
	if a.eighths < 8*due {
		return ""
	}
	a.eighths = 0
	if wrong := s.ledger.Check(); wrong != nil {
		return "the ledger of the service contradicts itself: " + strings.Join(wrong, "; ")
	}
	if s.books != nil {
		c, err := books.Read(s.books.File())
		if err != nil {
			return err.Error()
		}
		a.noted = c.Records
	}
	if wrong := a.noted.Differs(s.ledger.Written()); wrong != "" {
		return "a change was not noted: " + wrong
	}
	if _, err := ledger.Read(&a.noted, s.ledger.Limits); err != nil {
		return err.Error()
	}
	return ""
}
