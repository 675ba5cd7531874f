package bridge

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// The tests of this file run whole sessions in a channel in which one member writes whatever it likes into the memory that it may write.
// What this member writes may fail its own frames. Every honest session lives, with its leases, its names and its other pools.

// shared is a file of a channel that the hostile member has mapped.
type shared []byte

func mapShared(t testing.TB, f *os.File) shared {
	t.Helper()
	info, err := f.Stat()
	require.NoError(t, err)
	mem, err := unix.Mmap(int(f.Fd()), 0, int(info.Size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, unix.Munmap(mem)) })
	return mem
}

func (m shared) word(at uint64) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&m[at])) }

// hostileMember is a member that follows docs/streams.md where it does not lie.
type hostileMember struct {
	*partner
	*seat
	lease          wire.Grant
	sequencer, own shared
	slots          uint64
	role           string
}

// joinHostile makes a hostile member of the channel "c", which calls `before` after it has its files and before it has joined.
func joinHostile(t testing.TB, path, role string, before func(*hostileMember)) *hostileMember {
	t.Helper()
	h := &hostileMember{partner: sharing(t, path), role: role}
	pool, channel := h.findStream()
	var l wire.GrantReply
	h.get(&wire.Alloc{Pool: pool, Tensor: bytesTensor(16)}, &l)
	h.lease = l.Grant
	h.seat = h.take(&wire.Join{Channel: channel, Role: role})
	h.sequencer, h.own = mapShared(t, h.config.Sequencer), mapShared(t, h.config.Own)
	h.slots = uint64(len(h.sequencer)-8192) / 24
	before(h)
	h.get(&wire.Enter{Channel: channel, Member: h.Member}, &wire.EmptyReply{})
	return h
}

func (h *hostileMember) recordAt(n uint64) uint64 { return 4096 + 64*(n%h.slots) }
func (h *hostileMember) descriptionAt(n uint64) uint64 {
	return 4096 + 64*h.slots + 576*(n%h.slots)
}
func (h *hostileMember) metaAt(n uint64) uint64   { return 4096 + 640*h.slots + 8448*(n%h.slots) }
func (h *hostileMember) layoutAt(n uint64) uint64 { return 4096 + 9088*h.slots + 65536*(n%h.slots) }

// publish publishes a frame that would be right if `lie` did not change it, and returns the frame's number.
func (h *hostileMember) publish(lie func(h *hostileMember, number uint64)) uint64 {
	for {
		tail := h.sequencer.word(0).Load()
		last, slot := tail>>16, tail>>10&63
		n := (last + 1) & (1<<48 - 1)
		said := []byte("\x81\xa2by\xa2me")
		record := make([]byte, 0, 64)
		for _, word := range []uint64{n, h.lease.Block, h.lease.Buffer, 16, 1, 0, uint64(len(said)) << 32, 1000 + n} {
			record = binary.LittleEndian.AppendUint64(record, word)
		}
		description := make([]byte, 576)
		description[8] = 1
		copy(description[16:], "uint8")
		description[32] = 16
		copy(h.own[h.recordAt(n):], record)
		copy(h.own[h.descriptionAt(n):], description)
		copy(h.own[h.metaAt(n):], said)
		lie(h, n)
		if entry := h.sequencer.word(8192 + 8*(last%h.slots)); last != 0 && slot != 63 && entry.Load()>>6 < last {
			entry.Store(last<<6 | slot)
		}
		if h.sequencer.word(0).CompareAndSwap(tail, n<<16|h.Seat<<10|tail&1023) {
			h.sequencer.word(8192 + 8*(n%h.slots)).Store(n<<6 | h.Seat)
			return n
		}
	}
}

func noLie(*hostileMember, uint64) {}

// victim is an honest client with a producer and a consumer in the channel "c", and with a lease and a name in another pool.
type victim struct {
	*Client
	t        testing.TB
	p, other *Pool
	ch       *Channel
	lease    *Lease
	name     string
	manual   bool
	ctx      context.Context
	leave    context.CancelFunc
	next     func() (*Frame, error, bool)
	stop     func()
}

const secret = "the victim's own"

// newVictim makes a victim. The pools "p" and "other" and the channel "c" exist.
func newVictim(t testing.TB, path, name string, manual bool) *victim {
	t.Helper()
	v := &victim{Client: dial(t, path), t: t, name: name, manual: manual}
	var err error
	v.p, err = v.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	v.other, err = v.TryOpenPool(t.Context(), "other")
	require.NoError(t, err)
	v.lease = v.allocate(v.other)
	named := v.allocate(v.other)
	publish(t, named, name)
	v.ch, err = v.TryOpenChannel(t.Context(), "c")
	require.NoError(t, err)
	v.subscribe(v.ch)
	return v
}

func (v *victim) allocate(p *Pool) *Lease {
	v.t.Helper()
	l := allocate(v.t, p, uint64(len(secret)))
	require.NoError(v.t, l.CopyFrom(context.Background(), 0, []byte(secret)))
	return l
}

// subscribe makes v.next return the frames of a loop over ch.Frames.
func (v *victim) subscribe(ch *Channel) {
	v.t.Helper()
	v.ctx, v.leave = context.WithCancel(v.t.Context())
	s, err := ch.subscribe(v.ctx, mempool.SubscribeOptions{})
	require.NoError(v.t, err)
	v.next, v.stop = iter.Pull2(func(yield func(*Frame, error) bool) { s.deliver(v.ctx, v.manual, yield) })
	v.t.Cleanup(v.stop)
}

// send publishes a frame without waiting for room.
func (v *victim) send(ch *Channel) (uint64, error) {
	v.t.Helper()
	l := v.allocate(v.p)
	number, err := ch.TryPublish(v.t.Context(), l, mempool.FrameOptions{Meta: map[string]any{"by": "victim"}})
	if err != nil {
		require.NoError(v.t, l.Release(false), "a lease that was not published is still the victim's")
	}
	return number, err
}

// settle does with a frame what an honest consumer does.
func (v *victim) settle(f *Frame) {
	v.t.Helper()
	if f.Lease == nil {
		return
	}
	if v.manual {
		require.NoError(v.t, f.Ack())
	}
	require.NoError(v.t, f.Release())
}

// await takes frames up to the frame `last`, which must have the content that a victim has sent. It returns the numbers of the frames that
// failed. There may be at most `most` frames.
func (v *victim) await(last uint64, most int, what string) (failed []uint64) {
	v.t.Helper()
	for range most {
		f, err, ok := v.next()
		require.True(v.t, ok, what)
		require.NotNil(v.t, f, "%s: %v", what, err)
		if err != nil {
			require.ErrorIs(v.t, err, ErrContentFailed, what)
			require.NotEqual(v.t, last, f.Seq, "%s: %v", what, err)
			failed = append(failed, f.Seq)
			continue
		}
		if f.Seq == last {
			got := make([]byte, len(secret))
			require.NoError(v.t, f.Lease.CopyTo(context.Background(), got, 0))
			require.Equal(v.t, secret, string(got), what)
		}
		v.settle(f)
		if f.Seq == last {
			return failed
		}
	}
	require.Fail(v.t, "a frame goes round", "%s: frame %d did not come, %v failed", what, last, failed)
	return nil
}

// check checks that the session lives, and that the victim has all that it had. `others` is another client.
func (v *victim) check(others *Client) {
	v.t.Helper()
	_, err := v.Stats(v.t.Context())
	require.NoError(v.t, err)
	got := make([]byte, len(secret))
	require.NoError(v.t, v.lease.CopyTo(context.Background(), got, 0))
	require.Equal(v.t, secret, string(got))
	found, err := others.TryGet(v.t.Context(), v.name, LeaseOptions{})
	require.NoError(v.t, err)
	require.NoError(v.t, found.CopyTo(context.Background(), got, 0))
	require.Equal(v.t, secret, string(got))
	release(v.t, found)
	release(v.t, v.allocate(v.other))
}

// evil are values at the limits of what words can say.
var evil = []uint64{0, 1, 1 << 16, 1 << 31, 1<<32 - 1, 1 << 48, 1<<62 - 1, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1}

// wrongWord is a lie about one frame.
type wrongWord struct {
	what  string
	lie   func(h *hostileMember, number uint64)
	never bool // no frame can be right with it
}

func wrongWords() (all []wrongWord) {
	add := func(part string, at func(*hostileMember, uint64) uint64, offset, value uint64) {
		all = append(all, wrongWord{fmt.Sprintf("%s %d: %#x", part, offset, value),
			func(h *hostileMember, n uint64) { h.own.word(at(h, n) + offset).Store(value) },
			value >= 1<<63 && part == "record" && offset != 56})
	}
	for _, value := range evil {
		for offset := uint64(0); offset < 64; offset += 8 {
			add("record", (*hostileMember).recordAt, offset, value)
		}
		for _, offset := range []uint64{0, 8, 16, 24, 32, 40, 288, 544, 552} {
			add("description", (*hostileMember).descriptionAt, offset, value)
		}
	}
	for i, layout := range layoutLies() {
		all = append(all, wrongWord{fmt.Sprintf("layout %d", i), func(h *hostileMember, n uint64) {
			copy(h.own[h.layoutAt(n):], layout)
			h.own.word(h.descriptionAt(n) + 552).Store(uint64(len(layout)))
		}, true})
	}
	for what, meta := range map[string]string{
		"meta that is not UTF-8": "\x81\xa1k\xa1\xff",
		"a surrogate":            "\x81\xa1k\xa3\xed\xa0\x80",
		"a key twice":            "\x82\xa1k\xa1v\xa1k\xa1v",
		"text beyond the end":    "\x81\xa1k\xd9\xc8v",
		"too deep":               "\x81\xa1k\x91\x91\x91\x91\x91\x91\x91\x91\xc0",
		"an extension":           "\x81\xa1k\xd4\x01\x00",
		"a list of 2³² elements": "\x81\xa1k\xdd\xff\xff\xff\xff\xc0",
	} {
		all = append(all, wrongWord{what, func(h *hostileMember, n uint64) {
			copy(h.own[h.metaAt(n):], meta)
			h.own.word(h.recordAt(n) + 48).Store(uint64(len(meta)) << 32)
		}, true})
	}
	return all
}

// hostileRig is a service with the pools "p" and "other" and the channel "c".
func hostileRig(t *testing.T, spec mempool.ChannelSpec) (r *rig, honest *Client) {
	t.Helper()
	r = start(t, server.Config{}, unhurried)
	honest = dial(t, r.path)
	p := createPool(t, honest, hostPool("p", 64<<20))
	createPool(t, honest, hostPool("other", 1<<20))
	makeChannel(t, honest, p, spec)
	return r, honest
}

func inEveryMode(t *testing.T, f func(t *testing.T, mode mempool.ChannelMode, manual bool)) {
	for _, mode := range []mempool.ChannelMode{mempool.Broadcast, mempool.WorkQueue} {
		for _, manual := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/manual %t", mode, manual), func(t *testing.T) { f(t, mode, manual) })
		}
	}
}

func TestAWrongWordOfARecordCostsThatFrameAndNothingElse(t *testing.T) {
	inEveryMode(t, func(t *testing.T, mode mempool.ChannelMode, manual bool) {
		r, honest := hostileRig(t, mempool.ChannelSpec{Mode: mode, Capacity: 8})
		v := newVictim(t, r.path, "mine", manual)
		h := joinHostile(t, r.path, "producer", func(*hostileMember) {})
		for _, w := range wrongWords() {
			bad := h.publish(w.lie)
			good, err := v.send(v.ch)
			require.NoError(t, err, w.what)
			if failed := v.await(good, 2, w.what); failed != nil || w.never {
				require.Equal(t, []uint64{bad}, failed, w.what)
			}
		}
		v.check(honest)
		v.stop()
		if mode == mempool.WorkQueue {
			for found, err := range honest.Channels(t.Context()) {
				require.NoError(t, err)
				require.Zero(t, found.Waiting, "every frame is acknowledged")
			}
		}
	})
}

func TestWhatAMemberWroteBeforeItJoinedEndsNoSession(t *testing.T) {
	heads := map[string]func(*hostileMember){
		"the first word":  func(h *hostileMember) { h.own.word(0).Store(0) },
		"the second word": func(h *hostileMember) { h.own.word(8).Store(1<<64 - 1) },
		"the first pages": func(h *hostileMember) { copy(h.own, bytes.Repeat([]byte("poolbridge"), 1000)) },
	}
	for _, role := range []string{"producer", "consumer"} {
		for name, before := range heads {
			t.Run(role+"/"+name, func(t *testing.T) {
				r, honest := hostileRig(t, mempool.ChannelSpec{Full: mempool.DropOldest, Capacity: 8})
				victims := []*victim{newVictim(t, r.path, "early", false)}
				_, err := victims[0].send(victims[0].ch) // it is a producer before the hostile member comes
				require.NoError(t, err)
				h := joinHostile(t, r.path, role, before)
				victims = append(victims, newVictim(t, r.path, "late", true)) // it gets the file of the hostile member when it joins
				for range 3 {
					for _, from := range victims {
						if role == "producer" {
							h.publish(noLie)
						}
						number, err := from.send(from.ch)
						for errors.Is(err, ErrLimit) { // the file of the member that has just come is on its way
							number, err = from.send(from.ch)
						}
						require.NoError(t, err)
						for _, to := range victims {
							require.Empty(t, to.await(number, 8, name))
						}
					}
				}
				for _, v := range victims {
					v.check(honest)
				}
			})
		}
	}
}

// hostileSeed returns the seed that the environment variable POOLBRIDGE_TEST_SEED gives, or else a random seed, and prints the seed.
func hostileSeed(t *testing.T) uint64 {
	t.Helper()
	seed := rand.Uint64()
	if text := os.Getenv("POOLBRIDGE_TEST_SEED"); text != "" {
		var err error
		seed, err = strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
	}
	fmt.Printf("POOLBRIDGE_TEST_SEED=%d\n", seed) // unlike the output of t.Log, it is also there if the test hangs
	return seed
}

// liar writes arbitrary words.
type liar struct {
	*rand.Rand
}

// value returns a value that may look valid.
func (l liar) value(h *hostileMember) uint64 {
	near := h.sequencer.word(0).Load() >> 16
	values := append(slices.Clone(evil), near, near+1, near<<16, near<<6, near<<12|2, l.Uint64(), 1<<l.IntN(64))
	return values[l.IntN(len(values))]
}

// lie stores a value into a word of a file. The first words of a file are the most important ones.
func (l liar) lie(h *hostileMember, file shared) {
	sizes := []int{64, 512, 16384, len(file)}
	size := min(sizes[l.IntN(len(sizes))], len(file))
	at, value := 8*l.Uint64N(uint64(size/8)), l.value(h)
	if h.role == "consumer" && &file[0] == &h.own[0] && at >= 8192 && at%32 == 8 {
		value |= 1 << 63 // a fence that may still be reached is no lie: writers wait for it until this session ends
	}
	file.word(at).Store(value)
}

func TestArbitraryWordsEndNoSession(t *testing.T) {
	lies := 80 // with another seed in each run
	if os.Getenv("POOLBRIDGE_STRESS_FRAMES") != "" {
		lies = 1000
	}
	seed := hostileSeed(t)
	variant := uint64(0)
	for _, role := range []string{"producer", "consumer"} {
		for _, full := range []mempool.FullPolicy{mempool.Block, mempool.DropOldest} {
			inEveryMode(t, func(t *testing.T, mode mempool.ChannelMode, manual bool) {
				variant++
				l := liar{rand.New(rand.NewPCG(seed, variant))}
				r, honest := hostileRig(t, mempool.ChannelSpec{Mode: mode, Full: full, Capacity: 4})
				v := newVictim(t, r.path, "mine", manual)
				h := joinHostile(t, r.path, role, func(h *hostileMember) {
					for range 10 {
						l.lie(h, h.own)
					}
				})
				// First, lies in the member's own file. The frames of the honest producer arrive.
				for range lies {
					l.lie(h, h.own)
					sent := 1
					if role == "producer" && l.IntN(3) == 0 {
						h.publish(func(h *hostileMember, _ uint64) { l.lie(h, h.own) })
						sent++
					}
					number, err := v.send(v.ch)
					if err != nil {
						require.ErrorIs(t, err, ErrLimit)
						require.Equal(t, "consumer", role, "only a consumer holds a producer up")
						continue
					}
					v.await(number, sent, "arbitrary words")
				}
				v.check(honest)

				// Then also lies in the sequencer. They can end the streams of this channel, and nothing else.
				v.stop()
				from, err := v.ch.subscribe(t.Context(), mempool.SubscribeOptions{})
				require.NoError(t, err)
				for range lies {
					l.lie(h, []shared{h.sequencer, h.own}[l.IntN(2)])
					if role == "producer" && l.IntN(3) == 0 {
						h.publish(func(h *hostileMember, _ uint64) { l.lie(h, h.sequencer) })
					}
					if l.IntN(3) == 0 {
						_, err := v.send(v.ch)
						requireStreamError(t, err)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
					f, err := from.next(ctx)
					cancel()
					requireStreamError(t, err)
					if f != nil {
						_ = f.Release() // the frame may have been given to another
					}
				}
				from.Leave()
				v.check(honest)

				after := makeChannel(t, honest, mustOpen(t, honest, "p"), mempool.ChannelSpec{Name: "after", Mode: mode})
				theirs, err := v.TryOpenChannel(t.Context(), "after")
				require.NoError(t, err)
				v.subscribe(theirs)
				number, err := v.send(theirs)
				require.NoError(t, err)
				require.Empty(t, v.await(number, 1, "another channel"))
				require.NoError(t, after.Close(t.Context()))
			})
		}
	}
}

func mustOpen(t testing.TB, c *Client, name string) *Pool {
	t.Helper()
	p, err := c.TryOpenPool(t.Context(), name)
	require.NoError(t, err)
	return p
}

// requireStreamError fails the test unless err is nil or an error of one frame or one channel.
func requireStreamError(t testing.TB, err error) {
	t.Helper()
	for _, allowed := range []error{nil, ErrContentFailed, ErrProtocol, ErrLimit, ErrClosed, ErrTimeout, context.DeadlineExceeded} {
		if errors.Is(err, allowed) {
			return
		}
	}
	require.NoError(t, err)
}
