package service

import "maps"

// remove deletes a key from a map, and gives the map's room back once it has become much smaller than it was: a map of Go
// keeps the room for the most that it ever had. most is that number, and the caller's to keep.
func remove[K comparable, V any](m *map[K]V, most *int, key K) {
	const small = 1024
	*most = max(*most, len(*m))
	delete(*m, key)
	if *most > small && len(*m) < *most/4 {
		less := make(map[K]V, len(*m)) // a clone would be as large
		maps.Copy(less, *m)
		*m, *most = less, len(less)
	}
}
