package mempool

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/typed"
)

// The sizes of the two parts of a timeline's memory, in bytes. The first part has the words. The second part has one text for each word:
// the reason that the timeline's session gave when it called [Clock.Fail] for a fence of the word.
const (
	wordBytes = TimelineWords * 8
	pageBytes = wordBytes + TimelineWords*MaxReasonBytes
)

// Page is a timeline that is mapped in this process. Streams and the CPU of the timeline's session write words of the page. Streams and
// CPUs of all sessions wait for these words.
type Page struct {
	mem   []byte
	write bool
	gpu   registration

	life    sync.RWMutex // read-locked while a caller uses the page, locked by Close to unmap the page
	closing atomic.Bool  // Close has begun: calls of Await must return now
	closed  bool
}

// PageName is the name of the memfd of a timeline.
const PageName = "poolbridge:timeline"

// NewPage makes the memory of a timeline of an empty memfd, and maps it for writing. No process can change the size of the file, but each
// process that has the file can map it for writing. If NewPage fails, it closes the file.
//
// Errors: [ErrOutOfMemory], [ErrLimit], [ErrUnavailable].
func NewPage(f *os.File) (*Page, error) {
	err := f.Truncate(pageBytes)
	if err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	var p *Page
	if err == nil {
		p, err = mapPage(f, true)
	}
	if err != nil {
		return nil, errors.Join(HostError("make a timeline", err), f.Close())
	}
	return p, nil
}

// AdoptPage maps the timeline of a process that is gone, and of which f is the file.
func AdoptPage(f *os.File) (*Page, error) {
	if st, err := f.Stat(); err != nil || st.Size() != pageBytes {
		return nil, typed.Errorf(ErrInvalid, "the file of a timeline must have %d bytes, this one has not (%v)", pageBytes, err)
	}
	return mapPage(f, true)
}

func mapPage(f *os.File, write bool) (*Page, error) {
	prot := unix.PROT_READ
	if write {
		prot |= unix.PROT_WRITE
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, pageBytes, prot, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	// A forked child must not write the page after this process has ended.
	if err := unix.Madvise(mem, unix.MADV_DONTFORK); err != nil {
		return nil, errors.Join(os.NewSyscallError("madvise", err), unix.Munmap(mem))
	}
	return &Page{mem: mem, write: write}, nil
}

// MapPage maps a timeline that the service has made. A session maps its own timeline for writing, before the service seals the file. A
// session maps the timelines of other sessions for reading. The caller may close the file of x afterwards.
//
// Errors: [ErrInvalid] if x does not have the file of a timeline.
func MapPage(x Export, write bool) (*Page, error) {
	if len(x.Files) != 1 {
		return nil, typed.Errorf(ErrInvalid, "a timeline comes with one file descriptor, this one with %d", len(x.Files))
	}
	f := x.Files[0]
	const size = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&size != size {
		return nil, typed.Errorf(ErrInvalid, "the file of a timeline must be a memfd whose size is sealed, and this one is not (seals %#x, %v)", seals, err)
	}
	if st, err := f.Stat(); err != nil || st.Size() != pageBytes {
		return nil, typed.Errorf(ErrInvalid, "the file of a timeline must have %d bytes, this one has not (%v)", pageBytes, err)
	}
	p, err := mapPage(f, write)
	if err != nil {
		return nil, HostError("map a timeline", err)
	}
	return p, nil
}

func (p *Page) word(i uint64) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&p.mem[i%TimelineWords*8]))
}

// Load returns the value of a word.
func (p *Page) Load(word uint64) uint64 { return p.word(word).Load() }

// Passed reports whether a wait for the given value of a word is over: the word has reached the value, or will never reach it.
func (p *Page) Passed(word, value uint64) bool { return passed(p.Load(word), value) }

// Failed reports whether the fence with this word and value will never be reached, because the page's writer is gone or has said that the
// content failed.
func (p *Page) Failed(word, value uint64) bool {
	now := p.Load(word)
	return passed(now, value) && !kept(now, value)
}

func (p *Page) reasonOf(word uint64) []byte {
	at := wordBytes + word%TimelineWords*MaxReasonBytes
	return p.mem[at : at+MaxReasonBytes]
}

// Reason returns the reason that the page's writer gave when it marked a fence of the word as failed, or "" if the writer has not done so.
// The result is one line of UTF-8. The text comes from another process, so the caller must not trust it.
func (p *Page) Reason(word uint64) string {
	text, _, _ := bytes.Cut(bytes.Clone(p.reasonOf(word)), []byte{0})
	return oneLine(string(text))
}

// oneLine replaces invalid UTF-8 with U+FFFD, and characters that are not printable with spaces.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
}

// fail ends every wait for a value that the word has not reached, and stores the reason. If the word already has a reason, fail keeps that
// reason. If the word has already reached the value `value`, fail changes nothing and returns false.
func (p *Page) fail(word, value uint64, reason string) bool {
	w := p.word(word)
	slot := p.reasonOf(word)
	for {
		now := w.Load()
		if passed(now, value) {
			return !kept(now, value)
		}
		if slot[0] == 0 {
			reason = oneLine(reason)
			for len(reason) > len(slot) {
				_, size := utf8.DecodeLastRuneInString(reason)
				reason = reason[:len(reason)-size]
			}
			copy(slot, cmp.Or(reason, "no reason given"))
		}
		if w.CompareAndSwap(now, letGo+now) { // after the reason is stored: readers read the reason when their wait has ended
			futexWake(p.futex(word))
			return true
		}
		slot[0] = 0 // another goroutine or a GPU has changed the word, which may have reached value
	}
}

// renew makes a failed word usable again: it has the value `value` and no reason. Nobody may need the failure any more.
func (p *Page) renew(word, value uint64) {
	p.reasonOf(word)[0] = 0
	p.word(word).Store(value)
}

// raise sets a word to value if the word is less than value, and wakes the threads that sleep on the word.
func (p *Page) raise(word, value uint64) {
	w := p.word(word)
	for {
		now := w.Load()
		if passed(now, value) {
			return
		}
		if w.CompareAndSwap(now, value) {
			break
		}
	}
	futexWake(p.futex(word))
}

// LetGo ends every wait for a word of the page. The caller calls it when the page's writer is gone. LetGo returns the values that the words
// had reached.
func (p *Page) LetGo() (last [TimelineWords]uint64) {
	for i := range uint64(TimelineWords) {
		w := p.word(i)
		last[i] = w.Load() % letGo
		w.Store(letGo + last[i])
		futexWake(p.futex(i))
	}
	return last
}

// futex returns the half of a word on which waiting threads sleep.
func (p *Page) futex(word uint64) *uint32 {
	return (*uint32)(unsafe.Pointer(p.word(word))) // the low half, because the machine is little-endian
}

// Await first checks the word without a sleep, as many times as `spins` says. Then it sleeps between two checks. The first sleep takes the
// time firstSleep. The sleeps become longer, up to longSleep. Every sleep has a limit, because a GPU that writes a word does not wake a
// thread.
const (
	spins      = 200
	firstSleep = 20 * time.Microsecond
	longSleep  = 2 * time.Millisecond
)

// use begins a use of the page, so that Close does not unmap the page during this use. The caller ends the use with p.life.RUnlock.
func (p *Page) use(timeline uint64) error {
	p.life.RLock()
	if p.closed {
		p.life.RUnlock()
		return unmapped(timeline)
	}
	return nil
}

func unmapped(timeline uint64) error {
	return typed.Errorf(ErrStale, "timeline %d is not needed any more and was unmapped", timeline)
}

// Await returns when fence t is reached. The fence must belong to the timeline of this page.
//
// Errors: [ErrContentFailed] or [ErrProducerDied] if the fence will never be reached, [ErrStale] if the page is closed; the context's
// error, with [ErrBusy] at the context's deadline.
func (p *Page) Await(ctx context.Context, t Fence) error {
	if err := p.use(t.Timeline); err != nil {
		return err
	}
	defer p.life.RUnlock()
	for round, sleep := 0, firstSleep; ; round++ {
		now := p.Load(t.Word)
		switch {
		case passed(now, t.Value) && kept(now, t.Value):
			return nil
		case passed(now, t.Value):
			return p.lost(t, now)
		case p.closing.Load():
			return unmapped(t.Timeline)
		case round < spins:
			runtime.Gosched()
			continue
		case ctx.Err() != nil:
			return busy(ctx, "word %d of timeline %d has not reached %d; it is %d", t.Word, t.Timeline, t.Value, now)
		}
		futexWait(p.futex(t.Word), uint32(now), sleep)
		sleep = min(2*sleep, longSleep)
	}
}

// busy returns the error of a wait for work, after ctx has ended the wait.
func busy(ctx context.Context, format string, args ...any) error {
	err := typed.Ended(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w (%w)", typed.Errorf(ErrBusy, "work on it is under way: "+format, args...), err)
	}
	return err
}

// lost returns the error that says why fence t will never be reached. The parameter `now` is the present value of the fence's word.
func (p *Page) lost(t Fence, now uint64) error {
	if reason := p.Reason(t.Word); reason != "" {
		return typed.Errorf(ErrContentFailed, "its producer says: %s", reason)
	}
	return typed.Errorf(ErrProducerDied, "word %d of timeline %d was to reach %d; its process is gone and left %d",
		t.Word, t.Timeline, t.Value, now%letGo)
}

// seen returns true if no wait for fence t is needed any more. If the fence will never be reached, seen returns true with ErrContentFailed
// or ErrProducerDied. If the page is closed, seen returns ErrStale.
func (p *Page) seen(t Fence) (bool, error) {
	if err := p.use(t.Timeline); err != nil {
		return false, err
	}
	defer p.life.RUnlock()
	now := p.Load(t.Word)
	switch {
	case !passed(now, t.Value):
		return false, nil
	case kept(now, t.Value):
		return true, nil
	}
	return true, p.lost(t, now)
}

// Over returns true if no wait for fence t is needed any more: the fence is reached or will never be reached, or the page is closed. If the
// fence will never be reached, the result `failed` is ErrContentFailed or ErrProducerDied.
func (p *Page) Over(t Fence) (over bool, failed error) {
	over, err := p.seen(t)
	if errors.Is(err, ErrContentFailed) {
		failed = err
	}
	return over || err != nil, failed
}

// Idle reports whether Close can unmap the page at once, because no stream of this process still has work that uses the page.
func (p *Page) Idle() bool { return p.gpu.idle() }

// Close first ends all calls of Await for this page with an error. Then it waits until the queues that use words of the page have done
// their work. Then it unmaps the page, unless the driver fails to unregister the page.
func (p *Page) Close() error {
	p.closing.Store(true)
	p.life.Lock()
	defer p.life.Unlock()
	free, err := p.gpu.close()
	if !free {
		return err
	}
	p.closed = true
	return errors.Join(err, os.NewSyscallError("munmap", unix.Munmap(p.mem)))
}
