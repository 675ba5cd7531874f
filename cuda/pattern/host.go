package pattern

import (
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
)

// partBytes is how much host memory a core handles at a time. The number is a multiple of every
// element size, and large enough that the start of a task costs little in comparison.
const partBytes = 4 << 20

// Fill writes the pattern into mem with all cores. mem must be memory that the CPU can access.
//
// Errors: [ErrSize], and the errors of Validate.
func Fill(mem []byte, p Pattern) error {
	n, err := elements(p, len(mem))
	if err != nil {
		return err
	}
	split(mem, n, p.ElementBytes(), p.fill)
	return nil
}

// Verify compares mem with the pattern with all cores. mem must be memory that the CPU can access.
//
// Errors: [ErrSize], and the errors of Validate. Wrong elements are not an error: the report has
// them.
func Verify(mem []byte, p Pattern) (Report, error) {
	n, err := elements(p, len(mem))
	if err != nil {
		return Report{}, err
	}
	r := Report{Pattern: p, Elements: n}
	var mu sync.Mutex
	split(mem, n, p.ElementBytes(), func(part []byte, first uint64) {
		var found Report
		p.check(part, first, &found)
		if found.Count > 0 {
			mu.Lock()
			defer mu.Unlock()
			r.merge(found)
		}
	})
	return r, nil
}

// split calls f for each part of mem, which holds n elements. The argument first of f is the index
// of the part's first element.
func split(mem []byte, n, elementBytes uint64, f func(part []byte, first uint64)) {
	if len(mem) <= partBytes {
		f(mem, 0)
		return
	}
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for first := uint64(0); first < n; first += partBytes / elementBytes {
		at := first * elementBytes
		g.Go(func() error {
			f(mem[at:min(at+partBytes, uint64(len(mem)))], first)
			return nil
		})
	}
	_ = g.Wait()
}
