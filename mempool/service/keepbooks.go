package service

import (
	"fmt"

	"github.com/poolbridge/poolbridge/internal/failpoint"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/books"
)

// This file keeps the books, from which a successor makes its state when this service has died.

// openBooks makes the books, if there is a store.
func (s *Service) openBooks() {
	store := s.descriptors.store
	if store == nil {
		return
	}
	s.ledger.NoteChanges()
	b, err := books.New(s.epoch, s.began, s.ledger)
	if err == nil {
		s.books, err = b, store.Keep(BooksName, b.File())
	}
	if err != nil {
		s.guard.giveUp(fmt.Sprintf("its books cannot be kept: %v", err), &s.mu)
		return
	}
	failpoint.At("books/kept")
	s.guard.state = mempool.GuardWatches
	s.mu.commit = func() {
		failpoint.At("commit/changed")
		if last := s.eventLog.Last(); last != s.ledger.Last.Event {
			s.ledger.Last.Event = last
			s.ledger.Touch(&s.ledger.Last)
		}
		if err := b.Commit(s.ledger); err != nil {
			s.guard.giveUp(fmt.Sprintf("its books cannot be written: %v", err), &s.mu)
		}
		failpoint.At("commit/written")
		s.descriptors.flush()
	}
}

// Unguarded notes that the service does not outlive its process any more; text says why, and what to do.
func (s *Service) Unguarded(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guard.lose(text, &s.mu)
}

// Guarded notes which process is the guard of the service now.
func (s *Service) Guarded(pid int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.guard.pid = int32(pid)
	if !s.guard.useless {
		s.guard.state = mempool.GuardWatches
	}
}
