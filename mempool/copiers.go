package mempool

import (
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// copiers are goroutines that copy together. For a while after a copy they stay awake: to wake a core takes as long as
// copying a mebibyte, and a stream's next frame comes soon. Then they sleep.
type copiers struct {
	mu      sync.Mutex
	jobs    chan *copyJob
	running sync.WaitGroup
	started int
}

const (
	// stripeBytes is what a copier copies at a time. From a little more than a mebibyte on, Go writes past the caches, which
	// is what memory that a GPU fetches next wants.
	stripeBytes = 1<<20 + 1<<17
	maxCopiers  = 14
	copierVigil = 100 * time.Microsecond
)

// copyJob is a copy in stripes, of which the last takes the rest.
type copyJob struct {
	dst, src []byte
	stripes  int
	next     atomic.Int64
	helpers  sync.WaitGroup
}

func (j *copyJob) work() {
	for {
		i := int(j.next.Add(1) - 1)
		if i >= j.stripes {
			return
		}
		from, to := i*stripeBytes, (i+1)*stripeBytes
		if i == j.stripes-1 {
			to = len(j.dst)
		}
		copy(j.dst[from:to], j.src[from:to])
	}
}

// copy copies as much as fits, like the function of the language.
func (c *copiers) copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	stripes := n / stripeBytes
	helpers := min(stripes, maxCopiers, runtime.GOMAXPROCS(0)) - 1
	if helpers <= 0 {
		return copy(dst, src)
	}
	j := &copyJob{dst: dst[:n], src: src[:n], stripes: stripes}
	j.helpers.Add(helpers)
	jobs := c.start(helpers)
	for range helpers {
		jobs <- j
	}
	j.work()
	j.helpers.Wait()
	return n
}

// start makes sure that so many copiers run.
func (c *copiers) start(n int) chan *copyJob {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs == nil {
		c.jobs = make(chan *copyJob, maxCopiers)
	}
	jobs := c.jobs
	for ; c.started < n; c.started++ {
		c.running.Go(func() {
			for {
				j, ok := nextJob(jobs)
				if !ok {
					return
				}
				j.work()
				j.helpers.Done()
			}
		})
	}
	return jobs
}

// nextJob takes a job. On machines with cores to spare it looks for one for a while before it sleeps.
func nextJob(jobs chan *copyJob) (*copyJob, bool) {
	if runtime.GOMAXPROCS(0) >= 4 {
		for begun, i := time.Now(), 1; i%64 != 0 || time.Since(begun) < copierVigil; i++ {
			select {
			case j, ok := <-jobs:
				return j, ok
			default:
			}
		}
	}
	j, ok := <-jobs
	return j, ok
}

// close ends the goroutines. Nobody is copying.
func (c *copiers) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.jobs != nil {
		close(c.jobs)
		c.running.Wait()
		c.jobs, c.started = nil, 0
	}
}
