package pattern

import (
	"runtime"
	"sync"

	"golang.org/x/sync/errgroup"
)

// partBytes is how many bytes of host memory one core processes in one task. The number is a multiple of every element size. The number is so
// large that the work of a task takes much more time than starting the task.
const partBytes = 4 << 20

// Fill writes the pattern into mem. It uses all cores of the CPU. The CPU must be able to access mem.
//
// Errors: [ErrSize], and the errors of p.Validate.
func Fill(mem []byte, p Pattern) error {
	n, err := elements(p, len(mem))
	if err != nil {
		return err
	}
	split(mem, n, p.ElementBytes(), p.fill)
	return nil
}

// Verify compares mem with the pattern, more than 4 MiB on all cores. The CPU must be able to access mem. Wrong elements are no error: the report
// says how many there are, has the first ones, and makes an error of them ([Report.Err]).
//
// Errors: [ErrSize], and the errors of p.Validate.
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

// split divides mem, which has n elements, into parts, and calls f for each part. In each call of f, the argument `first` is the index of the
// first element of the part.
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
