package seqpacket

import "errors"

// FDs are the descriptors of one packet, in the order in which they were sent. The program that receives the packet takes
// descriptors in this order with Next, and closes the rest with Close. A nil *FDs is empty.
type FDs struct {
	list []*FD
}

// Len returns how many descriptors are left.
func (s *FDs) Len() int {
	if s == nil {
		return 0
	}
	return len(s.list)
}

// Next takes the first descriptor that is left. It returns nil if no descriptor is left.
func (s *FDs) Next() *FD {
	if s.Len() == 0 {
		return nil
	}
	f := s.list[0]
	s.list = s.list[1:]
	return f
}

// Close closes every descriptor that is left.
func (s *FDs) Close() error {
	var errs []error
	for f := s.Next(); f != nil; f = s.Next() {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}
