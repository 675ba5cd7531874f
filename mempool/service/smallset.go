package service

import "iter"

// smallSet is a set that allocates memory only if it has more than one element. The zero value of T cannot be an element.
type smallSet[T comparable] struct {
	one  T
	more map[T]struct{}
}

func (f *smallSet[T]) add(v T) {
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

func (f *smallSet[T]) remove(v T) {
	var none T
	if f.one == v {
		f.one = none
	} else if delete(f.more, v); len(f.more) == 0 {
		f.more = nil
	}
}

func (f *smallSet[T]) len() int {
	var none T
	if f.one == none {
		return len(f.more)
	}
	return len(f.more) + 1
}

func (f *smallSet[T]) all() iter.Seq[T] {
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
