package mempool

import (
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// copying configures how several goroutines copy memory together.
type copying struct {
	stripe   int           // bytes that a goroutine copies at a time
	together int           // greatest number of goroutines that copy at the same time
	vigil    time.Duration // how long a goroutine spins for more work before it sleeps
}

// manyCores is the smallest number of cores with which goroutines spin.
const manyCores = 4

// copiers are goroutines that share the work of a copy. After a copy, each goroutine spins for the time copying.vigil and then sleeps. It
// spins because the next copy often comes soon, and waking a core takes as long as copying a mebibyte. A copy never waits for a goroutine
// that is still waking up: the goroutines that are already awake copy all the bytes.
type copiers struct {
	how  copying
	open atomic.Int64 // len(jobs), for readers that do not hold mu

	mu      sync.Mutex
	jobs    []*copyJob // jobs with stripes that no goroutine has begun
	asleep  int
	wake    chan struct{} // gets one value for each goroutine that is to wake up
	closed  bool
	started int
	running sync.WaitGroup
}

// copyJob is a copy in stripes. The last stripe includes the rest.
type copyJob struct {
	dst, src []byte
	how      copying
	stripes  int64
	next     atomic.Int64  // the first stripe that no goroutine has begun
	left     atomic.Int64  // number of stripes that are not done
	done     chan struct{} // closed when all stripes are done
}

// helpers returns how many goroutines should help the caller with a copy of n bytes.
func (h copying) helpers(n int) int {
	return min(n/h.stripe, h.together, runtime.GOMAXPROCS(0)) - 1
}

// copy copies src to dst, up to the length of the shorter slice, like the built-in copy.
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

// begin adds job j to the list of jobs. The parameter `helpers` says how many goroutines should work on the job. If fewer goroutines exist,
// begin starts the missing goroutines. Then begin wakes sleeping goroutines, but at most `helpers` of them.
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

// rouse wakes up to n sleeping goroutines. The caller holds c.mu.
func (c *copiers) rouse(n int) {
	for range min(n, c.asleep) {
		c.asleep--
		c.wake <- struct{}{} // never blocks: the channel can hold one value for each goroutine
	}
}

// work copies stripes of a job until goroutines have begun all stripes.
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

// copy copies stripe i.
func (j *copyJob) copy(i int) {
	from, to := i*j.how.stripe, (i+1)*j.how.stripe
	if int64(i) == j.stripes-1 {
		to = len(j.dst)
	}
	copy(j.dst[from:to], j.src[from:to])
}

// begun removes a job from the list, because goroutines have begun all its stripes.
func (c *copiers) begun(j *copyJob) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.jobs = slices.DeleteFunc(c.jobs, func(other *copyJob) bool { return other == j })
	c.open.Store(int64(len(c.jobs)))
}

// help works on jobs until the copiers are closed.
func (c *copiers) help() {
	for j := c.nextJob(); j != nil; j = c.nextJob() {
		c.work(j)
	}
}

// nextJob waits for a job and returns it. It returns nil when the copiers are closed.
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

// job returns a job with a stripe that no goroutine has begun. If there is no such job, the result `sleep` is true, and the calling
// goroutine must sleep until the method `rouse` wakes it. But if the copiers are closed, job returns nil and false.
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

// look calls the function `so` until `so` returns true or the time h.vigil has passed, and returns the last result. If this process can use
// fewer CPUs than manyCores, look calls `so` only once.
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

// close ends the goroutines. No copy may be running.
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
