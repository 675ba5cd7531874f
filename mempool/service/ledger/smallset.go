package ledger

import "iter"

// SmallSet is a set that allocates memory only if it has more than one element. The zero value of T cannot be an element.
type SmallSet[T comparable] struct {
	one  T
	more map[T]struct{}
}

// Add adds an element.
func (f *SmallSet[T]) Add(v T) {
	var none T
	switch _, there := f.more[v]; {
	case v == f.one || there:
	case f.one == none:
		f.one = v
	default:
		if f.more == nil {
			f.more = make(map[T]struct{})
		}
		f.more[v] = struct{}{}
	}
}

// Remove removes an element, if the set has it.
func (f *SmallSet[T]) Remove(v T) {
	var none T
	if f.one == v {
		f.one = none
	} else if delete(f.more, v); len(f.more) == 0 {
		f.more = nil
	}
}

// Len returns the number of elements.
func (f *SmallSet[T]) Len() int {
	var none T
	if f.one == none {
		return len(f.more)
	}
	return len(f.more) + 1
}

// All yields the elements, in no order.
func (f *SmallSet[T]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		var none T
		if f.one != none && !yield(f.one) {
			return
		}
		for v := range f.more {
			if !yield(v) {
				return
			}
		}
	}
}

// Has says whether v is an element.
func (f *SmallSet[T]) Has(v T) bool {
	_, there := f.more[v]
	return v == f.one || there
}
