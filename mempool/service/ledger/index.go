package ledger

import (
	"cmp"
	"iter"
	"slices"
	"sort"
)

// Index maps keys to values, and keeps them in the order of the keys. So when the service reads one page of a list, it begins at the page's
// first entry, not at the start of the list. The entries are in chunks. If each new key is greater than all other keys, as with ids, the
// chunks become full. An index keeps no pointers to removed values, but the B-trees of common libraries keep such pointers. The zero value
// of K cannot be a key.
type Index[K cmp.Ordered, V any] struct {
	chunks  [][]indexed[K, V] // each chunk is sorted and not empty; its keys are less than the keys of the next chunk
	length  int
	changes int // counts added and removed entries, so that a running loop of the method After notices a change
}

type indexed[K cmp.Ordered, V any] struct {
	key   K
	value V
}

// indexChunk is the greatest number of entries in a chunk. Two neighboring chunks together have more than indexChunk/2 entries.
const indexChunk = 128

// Len returns the number of entries.
func (x *Index[K, V]) Len() int { return x.length }

// find returns the position of the key, or else the position of the next greater key.
func (x *Index[K, V]) find(key K) (chunk, at int, found bool) {
	chunk = sort.Search(len(x.chunks), func(i int) bool { return x.chunks[i][len(x.chunks[i])-1].key >= key })
	if chunk < len(x.chunks) {
		all := x.chunks[chunk]
		at = sort.Search(len(all), func(i int) bool { return all[i].key >= key })
		found = all[at].key == key
	}
	return chunk, at, found
}

// Get returns the value of a key, or the zero value.
func (x *Index[K, V]) Get(key K) (value V) {
	if chunk, at, found := x.find(key); found {
		value = x.chunks[chunk][at].value
	}
	return value
}

// Set adds a key, or replaces its value.
func (x *Index[K, V]) Set(key K, value V) {
	chunk, at, found := x.find(key)
	if found {
		x.chunks[chunk][at].value = value
		return
	}
	x.length++
	x.changes++
	last := len(x.chunks) - 1
	if chunk > last && last >= 0 && len(x.chunks[last]) < indexChunk {
		chunk, at = last, len(x.chunks[last])
	}
	if chunk > last {
		x.chunks = append(x.chunks, nil)
	} else if all := x.chunks[chunk]; len(all) == indexChunk {
		const half = indexChunk / 2
		x.chunks = slices.Insert(x.chunks, chunk+1, slices.Clone(all[half:]))
		x.chunks[chunk] = slices.Delete(all, half, indexChunk)
		if at > half {
			chunk, at = chunk+1, at-half
		}
	}
	x.chunks[chunk] = slices.Insert(x.chunks[chunk], at, indexed[K, V]{key, value})
}

// Remove removes a key, if the index has that key.
func (x *Index[K, V]) Remove(key K) {
	chunk, at, found := x.find(key)
	if !found {
		return
	}
	x.length--
	x.changes++
	x.chunks[chunk] = slices.Delete(x.chunks[chunk], at, at+1)
	for _, left := range []int{chunk, chunk - 1} { // join the chunk with the next chunk, or with the chunk before it
		if left < 0 || left+1 >= len(x.chunks) {
			continue
		}
		if n, m := len(x.chunks[left]), len(x.chunks[left+1]); n > 0 && m > 0 && n+m > indexChunk/2 {
			continue
		}
		x.chunks[left] = append(x.chunks[left], x.chunks[left+1]...)
		x.chunks = slices.Delete(x.chunks, left+1, left+2)
	}
	if x.length == 0 {
		x.chunks = nil
	}
}

// After yields the entries whose keys are greater than the argument `key`, in the order of the keys. During the loop, the caller may add
// entries to the index and remove entries from it.
func (x *Index[K, V]) After(key K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		chunk, at, found := x.find(key)
		for changes := x.changes; ; {
			if changes != x.changes {
				chunk, at, found = x.find(key)
				changes = x.changes
			}
			if found {
				at++
			}
			if chunk < len(x.chunks) && at == len(x.chunks[chunk]) {
				chunk, at = chunk+1, 0
			}
			if chunk == len(x.chunks) {
				return
			}
			e := x.chunks[chunk][at]
			key, found = e.key, true
			if !yield(e.key, e.value) {
				return
			}
		}
	}
}

// All yields the values, in the order of their keys.
func (x *Index[K, V]) All() iter.Seq[V] {
	return func(yield func(V) bool) {
		var first K
		for _, value := range x.After(first) {
			if !yield(value) {
				return
			}
		}
	}
}
