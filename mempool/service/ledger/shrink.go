package ledger

import "maps"

// RemoveKey deletes a key from a map. If the map was large and now has less than a quarter of its greatest length, RemoveKey replaces it with a
// new map, because a Go map never frees the memory of removed entries. The caller has a variable for the map's greatest length, and passes
// the variable's address as `most`.
func RemoveKey[K comparable, V any](m *map[K]V, most *int, key K) {
	const small = 1024
	*most = max(*most, len(*m))
	delete(*m, key)
	if *most > small && len(*m) < *most/4 {
		less := make(map[K]V, len(*m)) // maps.Clone would keep the old capacity
		maps.Copy(less, *m)
		*m, *most = less, len(less)
	}
}
