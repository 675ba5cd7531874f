package mempool

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// copying is how memory is copied by several goroutines.
type copying struct {
	stripe   int           // bytes that a goroutine copies at a time
	together int           // goroutines that copy, at most
	vigil    time.Duration // how long a goroutine looks for more before it sleeps
}

// manyCores is from how many on a goroutine may keep one busy while it looks for work.
const manyCores = 4

// copiers are goroutines that copy together. For a while after a copy they stay awake: to wake a core takes as long as
// copying a mebibyte, and a stream's next frame comes soon. Then they sleep. A copy never waits for one that has yet to
// wake: one that is awake does the work.
type copiers struct {
	how  copying
	open atomic.Int64 // how many jobs there are, to be seen without the lock

	mu      sync.Mutex
	jobs    []*copyJob // that have stripes which nobody has begun
	asleep  int
	wake    chan struct{} // a word for each that is woken
	closed  bool
	started int
	running sync.WaitGroup
}

// copyJob is a copy in stripes, of which the last takes the rest.
type copyJob struct {
	dst, src []byte
	how      copying
	stripes  int64
	next     atomic.Int64  // the first that nobody has begun
	left     atomic.Int64  // how many are not done
	done     chan struct{} // closed when all are
}

// helpers are how many goroutines are to help with a copy of n bytes.
func (h copying) helpers(n int) int {
	return min(n/h.stripe, h.together, runtime.GOMAXPROCS(0)) - 1
}

// copy copies as much as fits, like the function of the language.
func (c *copiers) copy(dst, src []byte) int {
	n := min(len(dst), len(src))
	helpers := c.how.helpers(n)
	if helpers <= 0 {
		return copy(dst, src)
	}
	j := &copyJob{dst: dst[:n], src: src[:n], how: c.how, stripes: int64(n / c.how.stripe), done: make(chan struct{})}
	j.left.Store(j.stripes)
	c.begin(j, helpers)
	c.work(j)
	if !c.how.look(func() bool { return j.left.Load() == 0 }) {
		<-j.done
	}
	return n
}

// begin offers a job to helpers.
func (c *copiers) begin(j *copyJob, helpers int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wake == nil {
		c.wake = make(chan struct{}, c.how.together)
	}
	c.jobs = append(c.jobs, j)
	c.open.Store(int64(len(c.jobs)))
	for ; c.started < helpers; c.started++ {
		c.running.Go(c.help)
	}
	c.rouse(helpers)
}

// rouse wakes up to n of those that sleep. c.mu is held.
func (c *copiers) rouse(n int) {
	for range min(n, c.asleep) {
		c.asleep--
		c.wake <- struct{}{} // there is room for all of them
	}
}

// work copies stripes of a job until all are begun.
func (c *copiers) work(j *copyJob) {
	for {
		i := j.next.Add(1) - 1
		if i >= j.stripes {
			return
		}
		if i == j.stripes-1 {
			c.begun(j)
		}
		j.copy(int(i))
		if j.left.Add(-1) == 0 {
			close(j.done)
		}
	}
}

// copy copies a stripe.
func (j *copyJob) copy(i int) {
	from, to := i*j.how.stripe, (i+1)*j.how.stripe
	if int64(i) == j.stripes-1 {
		to = len(j.dst)
	}
	copy(j.dst[from:to], j.src[from:to])
}

// begun takes a job away from the helpers: nothing of it is left to begin.
func (c *copiers) begun(j *copyJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = slices.DeleteFunc(c.jobs, func(other *copyJob) bool { return other == j })
	c.open.Store(int64(len(c.jobs)))
}

// help works on jobs until the end.
func (c *copiers) help() {
	for j := c.nextJob(); j != nil; j = c.nextJob() {
		c.work(j)
	}
}

// nextJob finds a job; nil at the end.
func (c *copiers) nextJob() *copyJob {
	for {
		c.how.look(func() bool { return c.open.Load() > 0 })
		j, sleep := c.job()
		if !sleep {
			return j
		}
		<-c.wake
	}
}

// job is a job with something left to begin. Where there is none the goroutine is to sleep until it is woken.
func (c *copiers) job() (j *copyJob, sleep bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case len(c.jobs) > 0:
		return c.jobs[0], false
	case c.closed:
		return nil, false
	}
	c.asleep++
	return nil, true
}

// look waits for a while until something is so, and says whether it is. It keeps a core busy, where there are some to spare.
func (h copying) look(so func() bool) bool {
	if runtime.GOMAXPROCS(0) < manyCores {
		return so()
	}
	for begun := time.Now(); time.Since(begun) < h.vigil; {
		if so() {
			return true
		}
	}
	return so()
}

// close ends the goroutines. Nobody is copying.
func (c *copiers) close() {
	c.mu.Lock()
	c.closed = true
	c.rouse(c.started)
	c.mu.Unlock()
	c.running.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed, c.started = false, 0
}
