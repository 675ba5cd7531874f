package service

import "maps"

// remove deletes a key from a map. When the map has less than a quarter of its greatest length, remove replaces it by a new one: a map of
// Go never shrinks. most is the greatest length; the caller stores it.
func remove[K comparable, V any](m *map[K]V, most *int, key K) {
	const small = 1024
	*most = max(*most, len(*m))
	delete(*m, key)
	if *most > small && len(*m) < *most/4 {
		less := make(map[K]V, len(*m)) // maps.Clone would keep the old capacity
		maps.Copy(less, *m)
		*m, *most = less, len(less)
	}
}
