package integration

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// death is how processes die at a failpoint.
type death struct {
	when    string         // of the name of the test
	steps   string         // one letter for each pass: k kills the process that passes, p lets it go on; empty: kk
	start   bool           // while the first service starts
	patient bool           // waits until the service gives up a session of which its client has not heard
	act     func(d *drama) // brings a process to the failpoint; nil: one act of `acts` after the other
	left    int
}

// What is left after a death.
const (
	whole = iota // nothing is lost
	gone         // guard and service are gone
	anew         // a service that knows nothing
)

// deaths are the deaths at the failpoints where not only two services in a row die.
var deaths = map[string][]death{
	"keep/stored":      {{steps: strings.Repeat("kpkpp", 10)}, {when: "start", start: true}}, // each descriptor
	"store/sent":       {{steps: strings.Repeat("pkp", 10)}, {when: "start", start: true}},
	"drop/committed":   {{steps: strings.Repeat("pkp", 10), act: (*drama).work}},
	"drop/told":        {{act: (*drama).work}}, // after the answer: the next act would be too early
	"commit/changed":   {{steps: strings.Repeat("pppppppk", 12)}, {when: "start", start: true}},
	"commit/written":   {{steps: strings.Repeat("pppppk", 12)}, {when: "start", start: true}},
	"books/appended":   {{steps: strings.Repeat("pppppppppk", 12)}, {when: "start", start: true}},
	"books/rewritten":  {{}, {when: "start", start: true}, {when: "full", act: (*drama).fillBooks}},
	"books/moved":      {{}, {when: "start", start: true}, {when: "full", act: (*drama).fillBooks}},
	"books/kept":       {{}, {when: "start", start: true}},
	"begin/made":       {{start: true}},
	"begin/dropped":    {{steps: strings.Repeat("k", 8), act: (*drama).damage, left: anew}},
	"listen/kept":      {{start: true}},
	"hello/answering":  {{patient: true}},
	"answer/again":     {{act: (*drama).loseAnswers}},
	"settings/written": {{when: "start", start: true}},
	"serve/pools":      {{}, {when: "start", start: true}},
	"serve/listening":  {{}, {when: "start", start: true}},
	"serve/ready":      {{}, {when: "start", start: true}},
	"serve/ending":     {{steps: "k", act: (*drama).end}},
	"end/told":         {{steps: "k", act: (*drama).end, left: anew}},
	"guard/launched":   {{steps: "k"}, {when: "start", steps: "k", start: true}},
	"guard/listening":  {{steps: "k"}},
	"guard/answered":   {{steps: "k"}},
	"guard/stored":     {{}, {when: "start", start: true}},
	"guard/dropped":    {{act: (*drama).work}},
	"guard/ready":      {{act: (*drama).killService}, {when: "start", start: true}},
	"guard/reaped":     {{steps: "k", act: (*drama).killService, left: gone}},
	"newguard/begun":   {{steps: "k", act: (*drama).killGuard, left: gone}},
	"upgrade/killed":   {{steps: "k", act: (*drama).upgrade, left: gone}},
}

// acts bring the service and its guard to every failpoint that is not in deaths.
var acts = []func(*drama){(*drama).work, (*drama).killService, (*drama).work, (*drama).killGuard, (*drama).upgrade}

func TestNothingIsLostWhereverTheServiceOrItsGuardIsKilled(t *testing.T) {
	long(t)
	points := failpoints(t)
	if _, err := exec.LookPath("go"); err != nil || len(points) == 0 {
		t.Skip("this needs Go and the source")
	}
	program := filepath.Join(t.TempDir(), "poolsvc")
	build := exec.Command("go", "build", "-tags", "failpoints", "-o", program, "./cmd/poolsvc")
	build.Dir = rig.Root()
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	for point := range deaths {
		require.Contains(t, points, point)
	}
	for _, kind := range []mempool.Kind{mempool.Host, mempool.VMM, mempool.Device} {
		for _, point := range points {
			if _, memory := deaths[point]; kind != mempool.Host && memory && !strings.HasPrefix(point, "keep/") && !strings.HasPrefix(point, "drop/") {
				continue
			}
			for _, d := range append(deaths[point], death{})[:max(1, len(deaths[point]))] {
				t.Run(filepath.Join(string(kind), point, d.when), func(t *testing.T) {
					t.Parallel()
					play(t, program, kind, point, d)
				})
			}
		}
	}
}

// failpoints returns the names of the failpoints in the source.
func failpoints(t *testing.T) (names []string) {
	for _, folder := range []string{"bridge", "cmd", "cuda", "internal", "mempool"} {
		_ = filepath.WalkDir(filepath.Join(rig.Root(), folder), func(path string, _ fs.DirEntry, _ error) error {
			if source, err := os.ReadFile(path); err == nil && strings.HasSuffix(path, ".go") {
				for _, found := range regexp.MustCompile(`failpoint\.At\("(.*)"\)`).FindAllStringSubmatch(string(source), -1) {
					require.NotContains(t, names, found[1], "two failpoints have one name")
					names = append(names, found[1])
				}
			}
			return nil
		})
	}
	return names
}

// drama is a service with clients while processes die.
type drama struct {
	*testing.T
	ctx     context.Context
	program string
	s       *rig.Service
	kind    mempool.Kind
	root    string // of the folders of the failpoints
	folder  string // of the failpoint
	guard   int
	service int
	clients []*bridge.Client
	turns   int
	death
}

func play(t *testing.T, program string, kind mempool.Kind, point string, how death) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	root := t.TempDir()
	d := &drama{T: t, ctx: ctx, program: program, kind: kind, root: root, death: how}
	if how.start {
		d.arm(point, how.steps)
	}
	defer func() { // before the cleanup of rig, which waits
		if t.Failed() {
			guards, services := d.processes()
			for _, pid := range append(guards, services...) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
			t.Logf("again: tests/simcuda/machine go test -count=1 -run '^%s$' ./tests/integration", t.Name())
		}
	}()
	d.s = guarded(t, kind, "env", "POOLBRIDGE_FAILPOINTS="+root, program)
	d.guarded()
	var before map[string]int
	require.Eventually(t, func() bool {
		before = d.open()
		return before["guard has socket:[]"] == 2
	}, time.Minute, time.Millisecond, "the guard has its own socket, and soon that of the service")
	h := d.hold()
	if !how.start {
		d.arm(point, how.steps)
		for i, act := range acts {
			if how.act != nil {
				act = how.act
			}
			if act(d); how.act != nil || d.reached() {
				t.Log("reached by act", i)
				break
			}
		}
	}
	require.Eventually(t, d.reached, time.Minute, time.Millisecond, "no process came to the failpoint %s", point)
	files, err := os.ReadDir(d.folder)
	require.NoError(t, err)
	t.Log(len(files), "of the passes are left,", strings.Count(d.s.Log(), "the service died"), "deaths of a service")
	require.NoError(t, os.RemoveAll(d.root))
	if how.left != gone {
		d.guarded()
	}
	if how.left != whole {
		_, err := h.client.Stats(d.ctx)
		require.ErrorIs(t, err, bridge.ErrDisconnected)
		h.stop()
	}
	if how.left == gone {
		d.closeClients()
		_ = d.s.Ended(t) // the guard was killed
		next := rig.ServeAt(t, d.s.Socket, "--pool", "name=p,kind=host,max=64MiB")
		require.Zero(t, next.Stats(t).Leases)
		return
	}
	if how.left == whole {
		d.everythingIsThere(h)
		d.work()
		assert.NotContains(t, d.s.Log(), "cannot be taken over")
	}
	d.closeClients()
	d.settled(before)
	assert.NotRegexp(t, "contradicts|panic", d.s.Log())
	require.NoError(t, syscall.Kill(d.guard, syscall.SIGTERM))
	_ = d.s.Ended(t) // the first guard may have been killed
	require.NoFileExists(t, d.s.Socket)
}

// arm says what the next passes of a failpoint do.
func (d *drama) arm(point, steps string) {
	d.folder = filepath.Join(d.root, point)
	require.NoError(d, os.MkdirAll(d.folder, 0o700))
	for i, step := range cmp.Or(steps, "kk") {
		path := filepath.Join(d.folder, fmt.Sprintf("%03d-%s", i, map[rune]string{'k': "kill", 'p': "pass"}[step]))
		require.NoError(d, os.WriteFile(path, nil, 0o600))
	}
	d.turns = strings.Count(cmp.Or(steps, "kk"), "k")
}

// reached reports whether a process was killed at the failpoint.
func (d *drama) reached() bool {
	kills, err := filepath.Glob(filepath.Join(d.folder, "*-kill"))
	require.NoError(d, err)
	return len(kills) < d.turns
}

// processes returns the guards and the services of this test.
func (d *drama) processes() (guards, services []int) {
	paths, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range paths {
		given, _ := os.ReadFile(path)
		runs, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		pid, _ := strconv.Atoi(strings.Split(path, "/")[2])
		switch {
		case !strings.Contains(string(given), "POOLBRIDGE_FAILPOINTS="+d.root+"\x00") || !strings.Contains(string(runs), "\x00serve\x00"):
		case strings.Contains(string(given), "FDSTORE=guard\x00"):
			services = append(services, pid)
		default:
			guards = append(guards, pid)
		}
	}
	return guards, services
}

// guarded waits until the service has a guard, of which it knows.
func (d *drama) guarded() {
	require.Eventually(d, func() bool {
		guards, services := d.processes()
		if len(guards) != 1 || len(services) != 1 {
			return false
		}
		d.guard, d.service = guards[0], services[0]
		stats := d.s.StatsWhen(d, always)
		return stats.Guard == mempool.GuardWatches && int(stats.GuardPID) == d.guard
	}, time.Minute, 5*time.Millisecond, "the service has one guard")
}

func (d *drama) dial() *bridge.Client {
	c, err := bridge.Dialer{Wait: true}.Dial(d.ctx, d.s.Socket)
	require.NoError(d, err)
	d.clients = append(d.clients, c)
	return c
}

func (d *drama) closeClients() {
	for _, c := range d.clients {
		require.NoError(d, c.Close())
	}
	d.clients = nil
}

// flow is a channel with its producer and its consumer.
type flow struct {
	*drama
	pool           *bridge.Pool
	ch             *bridge.Channel
	sent, received uint64
	next           func() (*bridge.Frame, error, bool)
	stop           func()
}

func (d *drama) flow(name string, mode mempool.ChannelMode, pool string) *flow {
	producer, consumer := d.dial(), d.dial()
	p, err := producer.OpenPool(d.ctx, pool)
	require.NoError(d, err)
	ch, err := producer.CreateChannel(d.ctx, mempool.ChannelSpec{Name: name, Pool: p.Info().ID, Mode: mode, Capacity: 8})
	require.NoError(d, err)
	to, err := consumer.Subscribe(d.ctx, name, mempool.SubscribeOptions{Oldest: true})
	require.NoError(d, err)
	f := &flow{drama: d, pool: p, ch: ch}
	f.next, f.stop = iter.Pull2(to.Frames(d.ctx))
	return f
}

func (f *flow) send(n int) {
	for range n {
		l, err := f.pool.Allocate(f.ctx, mempool.Bytes(8))
		require.NoError(f, err)
		f.sent++
		require.NoError(f, l.CopyFrom(f.ctx, 0, binary.LittleEndian.AppendUint64(nil, f.sent)))
		_, err = f.ch.Publish(f.ctx, l, mempool.FrameOptions{})
		require.NoError(f, err)
	}
}

// receive returns the next frame, which must be the next in order.
func (f *flow) receive() *bridge.Frame {
	frame, err, more := f.next()
	require.NoError(f, err)
	require.True(f, more)
	b := make([]byte, 8)
	require.NoError(f, frame.Lease.CopyTo(f.ctx, b, 0))
	f.received++
	require.Equal(f, f.received, binary.LittleEndian.Uint64(b), f.ch)
	return frame
}

// close receives what was sent, and checks that there is nothing more.
func (f *flow) close() {
	for f.received < f.sent {
		require.NoError(f, f.receive().Release())
	}
	require.NoError(f, f.ch.Close(f.ctx))
	frame, err, more := f.next()
	require.False(f, more, "%v %v", frame, err)
	f.stop()
}

// held is what must last.
type held struct {
	client   *bridge.Client
	stats    mempool.ServiceStats
	leases   []*bridge.Lease
	promised *bridge.Lease
	keep     func() // keeps the promise
	flows    []*flow
	frames   []*bridge.Frame // one of each flow
}

func (d *drama) hold() *held {
	h := &held{client: d.dial()}
	p, err := h.client.OpenPool(d.ctx, "p")
	require.NoError(d, err)
	for i := range 4 {
		h.leases = append(h.leases, filled(d.T, p, 4096<<i, byte(i)))
	}
	kept := filled(d.T, p, 4096, 99)
	require.NoError(d, kept.Publish(d.ctx, mempool.Publication{Name: "kept", Keep: true}))
	require.NoError(d, kept.Release(false))
	h.promised = filled(d.T, p, 4096, 98)
	clock, err := h.client.Clock(d.ctx)
	require.NoError(d, err)
	word, err := clock.Word(d.ctx)
	require.NoError(d, err)
	ready := clock.Next(word)
	require.NoError(d, h.promised.Publish(d.ctx, mempool.Publication{Name: "promised", Completion: mempool.Completion{Ready: &ready}}))
	h.keep = func() { require.NoError(d, clock.Reach(ready)) }
	for _, mode := range []mempool.ChannelMode{mempool.WorkQueue, mempool.Broadcast} {
		f := d.flow(string(mode), mode, "p")
		f.send(3)
		h.flows, h.frames = append(h.flows, f), append(h.frames, f.receive())
	}
	h.stats, err = h.client.Stats(d.ctx)
	require.NoError(d, err)
	return h
}

func (h *held) stop() {
	for i, f := range h.flows {
		_ = h.frames[i].Release() // the session has ended
		f.stop()
	}
}

// everythingIsThere checks that nothing of `held` is lost, and gives it back.
func (d *drama) everythingIsThere(h *held) {
	d.s.StatsWhen(d, func(st mempool.ServiceStats) bool {
		return st.Leases == h.stats.Leases && st.Buffers == h.stats.Buffers && st.Names == h.stats.Names
	})
	for i, l := range h.leases {
		has(d, l, 4096<<i, byte(i))
		require.NoError(d, l.Release(false))
	}
	reader := d.dial()
	kept, err := reader.Get(d.ctx, "kept", bridge.LeaseOptions{})
	require.NoError(d, err)
	has(d, kept, 4096, 99)
	require.NoError(d, kept.Release(false))
	require.NoError(d, h.client.Unpublish(d.ctx, "kept"))
	promised, err := reader.Get(d.ctx, "promised", bridge.LeaseOptions{})
	require.NoError(d, err)
	brief, cancel := context.WithTimeout(d.ctx, time.Millisecond)
	defer cancel()
	require.ErrorIs(d, promised.WaitOn(brief, mempool.CPU), context.DeadlineExceeded)
	h.keep()
	has(d, promised, 4096, 98)
	require.NoError(d, promised.Release(false))
	require.NoError(d, h.promised.Release(false))
	for i, f := range h.flows {
		f.send(3)
		require.NoError(d, h.frames[i].Release())
		f.close()
	}
}

// settled checks that nothing is left when the clients are gone.
func (d *drama) settled(before map[string]int) {
	d.s.StatsWhen(d, func(st mempool.ServiceStats) bool {
		return (st.Sessions == 1 || !d.patient) && st.Leases+st.Buffers+st.Names == 0 && len(st.Pools) == 1
	})
	c := d.dial()
	p, err := c.OpenPool(d.ctx, "p")
	require.NoError(d, err)
	require.EventuallyWithT(d, func(t *assert.CollectT) {
		_, err := p.Trim(d.ctx, 0)
		require.NoError(t, err)
		stats, err := c.Stats(d.ctx)
		require.NoError(t, err)
		require.Zero(t, stats.Pools[0].Reserved+uint64(stats.Pools[0].Blocks), "%+v", stats)
	}, time.Minute, time.Millisecond, "the pool is empty")
	d.closeClients()
	require.EventuallyWithT(d, func(t *assert.CollectT) {
		for what, n := range d.open() {
			if d.patient || !strings.Contains(what, "pidfd") {
				require.LessOrEqual(t, n, before[what], what)
			}
		}
	}, time.Minute, 10*time.Millisecond, "there are too many descriptors or mappings")
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", d.guard))
	require.NoError(d, err)
	links = slices.DeleteFunc(links, func(path string) bool {
		to, _ := os.Readlink(path)
		return !strings.Contains(to, "poolbridge:books")
	})
	require.Len(d, links, 1)
	out, err := exec.Command(rig.Poolsvc(d), "books", "check", links[0]).CombinedOutput()
	require.NoError(d, err, string(out))
}

// open counts the descriptors of the guard and the service, and the memory that they map.
func (d *drama) open() map[string]int {
	counts := make(map[string]int)
	for who, pid := range map[string]int{"guard": d.guard, "service": d.service} {
		links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		require.NoError(d, err)
		for _, link := range links {
			to, _ := os.Readlink(link)                                       // it may be closed
			if who == "guard" || !strings.HasPrefix(to, "/memfd:simcuda:") { // of the driver, which loads late
				counts[who+" has "+regexp.MustCompile(`[0-9]+`).ReplaceAllString(to, "")]++
			}
		}
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		require.NoError(d, err)
		counts[who+" maps"] = strings.Count(string(maps), "memfd:poolbridge:")
	}
	return counts
}

// work uses everything that a service does for a client.
func (d *drama) work() {
	c := d.dial()
	p, err := c.OpenPool(d.ctx, "p")
	require.NoError(d, err)
	own, err := c.CreatePool(d.ctx, mempool.PoolSpec{Name: "w", Kind: d.kind, MaxBytes: 64 << 20})
	require.NoError(d, err)
	for i, p := range []*bridge.Pool{p, own} {
		l := filled(d.T, p, 1<<20, byte(i))
		require.NoError(d, l.Publish(d.ctx, mempool.Publication{Name: "n", Replace: true}))
		r, err := c.Get(d.ctx, "n", bridge.LeaseOptions{})
		require.NoError(d, err)
		has(d, r, 1<<20, byte(i))
		require.NoError(d, r.Release(false))
		require.NoError(d, l.Release(false))
	}
	f := d.flow("w", mempool.WorkQueue, "w")
	f.send(2)
	f.close()
	require.NoError(d, own.Destroy(d.ctx))
	_, err = p.Trim(d.ctx, 0)
	require.NoError(d, err)
}

func (d *drama) killService() {
	require.NoError(d, syscall.Kill(d.service, syscall.SIGKILL))
	if d.left == whole {
		_, err := d.clients[0].Stats(d.ctx)
		require.NoError(d, err)
		d.guarded()
	}
}

func (d *drama) killGuard() {
	require.NoError(d, syscall.Kill(d.guard, syscall.SIGKILL))
	if d.left == whole {
		was := d.guard
		require.Eventually(d, func() bool {
			d.guarded()
			return d.guard != was
		}, time.Minute, time.Millisecond, "another guard")
	}
}

func (d *drama) upgrade() {
	if said, err := upgrade(d.T, d.s, d.program); d.left == whole && !d.reached() {
		require.NoError(d, err, said)
	}
	if d.left == whole {
		d.guarded()
	}
}

// end tells the service to end.
func (d *drama) end() { require.NoError(d, syscall.Kill(d.service, syscall.SIGTERM)) }

// damage overwrites the books and kills the service.
func (d *drama) damage() {
	pid := d.service
	links, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	require.NoError(d, err)
	for _, link := range links {
		if to, _ := os.Readlink(link); strings.Contains(to, "poolbridge:books") {
			f, err := os.OpenFile(link, os.O_WRONLY, 0)
			require.NoError(d, err)
			_, err = f.WriteAt([]byte("nonsense"), 4096+8)
			require.NoError(d, err)
			require.NoError(d, f.Close())
		}
	}
	require.NoError(d, syscall.Kill(pid, syscall.SIGKILL))
	require.Eventually(d, func() bool {
		passes, err := os.ReadDir(d.folder)
		return err == nil && len(passes) == 0
	}, time.Minute, time.Millisecond, "each of the next services has dropped one descriptor")
}

// loseAnswers kills the service when it has carried requests out and not answered them.
func (d *drama) loseAnswers() {
	folder, turns := d.folder, d.turns
	d.arm("commit/written", strings.Repeat("pppppk", 12))
	d.folder, d.turns = folder, turns
	d.work()
}

// fillBooks makes changes with long records until the books begin anew.
func (d *drama) fillBooks() {
	spec := mempool.PoolSpec{Name: "w", Kind: mempool.Host, MaxBytes: 4096} // its maker may not use it, and gets it all the same
	for i := range 1000 {
		spec.Access.UIDs = append(spec.Access.UIDs, uint32(1<<31+i))
	}
	for !d.reached() {
		p, err := d.clients[0].CreatePool(d.ctx, spec)
		require.NoError(d, err)
		require.NoError(d, p.Destroy(d.ctx))
	}
}
