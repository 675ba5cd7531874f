package shmchannel

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// hostile is a channel whose shared memory the test can overwrite, wherever members can write.
type hostile struct {
	t         testing.TB
	rig       *rig
	regions   []region
	producers []*testProducer
	consumers []*testConsumer
	hand      []*Frame
	dropped   uint64 // the host's last answer
	newest    uint64
	record    Record
}

func newHostile(t testing.TB, spec Spec) *hostile {
	r := newRig(t, spec)
	h := &hostile{t: t, rig: r, record: Record{Block: 1, Description: bytes64}}
	for range 2 {
		p := r.openProducer(0)
		h.regions = append(h.regions, p.track.region)
		require.NoError(t, r.host.Join(p.member))
		h.producers = append(h.producers, p)
	}
	for _, policy := range []Policy{Block, Fail, DropOldest, Latest} {
		c := r.consumer(MemberSpec{Policy: policy, Timeline: uint64(policy)})
		h.regions = append(h.regions, c.cursor.region)
		h.consumers = append(h.consumers, c)
	}
	h.regions = append(h.regions, r.host.sequencerRegion, r.host.sequencerRegion, r.host.rosterRegion)
	return h
}

// lie overwrites a word of a channel's file with the given value. To a member, this value can look valid.
func (h *hostile) lie(file, place, value uint64) {
	mem := h.regions[file%uint64(len(h.regions))]
	l := h.rig.host.geometry
	size := uint64(len(mem))
	offset := place * 8 % size
	if size == l.trackBytes() {
		switch base := trackHeadBytes + place*8%(RecordBytes*l.slots); place % 4 {
		case 0:
			offset = l.descriptionsAt() + place*8%(DescriptionBytes*l.slots)
		case 1:
			offset = l.metaAt() + place*8%(MetaBytes*l.slots)
		case 2:
			offset = l.layoutsAt() + place*8%(LayoutBytes*l.slots)
		default:
			offset = base
		}
	} else if place%2 == 0 {
		offset = place / 2 * 8 % min(size, 1024) // the most important words are at the start of the file
	}
	t := h.rig.host.sequencer.loadTail()
	near := (t.number() + value>>8%8 - 4) & MaxNumber
	switch value % 8 {
	case 0:
		value >>= 3
	case 1:
		value = value >> 3 % 4
	case 2:
		value = near
	case 3:
		value = uint64(newTail(near, int(value>>16%64), t.version()+value>>24%2))
	case 4:
		value = uint64(newEntry(near, int(value>>16%64)))
	case 5:
		value = uint64(newClaim(near, value>>16%8))
	case 6:
		value = value>>8%64 + t.number()
	case 7:
		value = uint64(newDelivery(near, value>>16&MaxDelivery))
	}
	at[atomic.Uint64](mem, offset).Store(value)
}

// act makes a member or the host do one step.
func (h *hostile) act(what, who uint64) {
	p, c := h.producers[who%uint64(len(h.producers))], h.consumers[who%uint64(len(h.consumers))]
	host := h.rig.host
	var err error
	switch what % 16 {
	case 0, 1, 2, 3:
		h.record.Buffer++
		_, err = p.TryPublish(&h.record)
	case 4, 5, 6, 7, 8:
		f := &Frame{}
		var ok bool
		if ok, err = c.TryTake(f); ok {
			h.checkFrame(f)
			h.hand = append(h.hand, f)
		}
	case 9:
		_, err = p.Reclaim()
	case 10, 11, 12:
		if len(h.hand) > 0 {
			f := h.hand[len(h.hand)-1]
			h.hand = h.hand[:len(h.hand)-1]
			for _, c := range h.consumers {
				settle := c.Acknowledge
				if what%16 == 12 {
					settle = c.Requeue
				}
				err = errors.Join(settle(f), c.Release(f, Fence{Word: who % 3, Value: who}))
				h.checkError(err)
			}
			return
		}
	case 13:
		host.Look(h.producers[0].member, h.producers[1].member)
		host.kept(h.producers[1].member)
		host.Fences(nil, h.producers[0].member)
		host.Fences(nil, h.consumers[1].member)
		host.Used()
		dropped, newest := host.Dropped(), host.Published()
		if dropped < h.dropped || newest < h.newest {
			h.t.Fatalf("a count shrank: %d, %d after %d, %d", dropped, newest, h.dropped, h.newest)
		}
		h.dropped, h.newest = dropped, newest
		host.consumerNeeded(h.consumers[0].member, func(Fence) bool { return true })
	case 14:
		if who%64 == 0 {
			_, err = host.change()
		}
	case 15:
		if who%256 == 0 {
			err = errors.Join(c.Leave(), host.Leave(c.member))
		}
	}
	h.checkError(err)
}

func (h *hostile) checkFrame(f *Frame) {
	if err := f.check(); err != nil {
		h.t.Fatalf("a frame came that nobody can publish: %v", err)
	}
	if err := f.Description.Validate(); err != nil {
		h.t.Fatal(err)
	}
}

// checkError fails the test if err is not a documented error.
func (h *hostile) checkError(err error) {
	if err == nil {
		return
	}
	for _, known := range []error{ErrFull, ErrClosed, ErrEnded, ErrDestroyed, ErrLeft, ErrUnknownMember, ErrFrame, ErrUndeliverable, ErrInHand, ErrReleased,
		ErrUnfinished, ErrCorrupt, ErrInvalid, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return
		}
	}
	h.t.Fatalf("an error that callers do not know: %v", err)
}

// run runs a fuzzing program. Each step of the program has 12 bytes. A step either calls the method lie, which overwrites a word of a file,
// or calls a method of a member or of the host.
func (h *hostile) run(program []byte) {
	for ; len(program) >= 12; program = program[12:] {
		what, file := uint64(program[0]), uint64(program[1])
		place, value := uint64(binary.LittleEndian.Uint16(program[2:])), binary.LittleEndian.Uint64(program[4:])
		if what < 96 {
			h.lie(file, place, value)
		} else {
			h.act(what, value)
		}
	}
}

func hostileSpecs() []Spec {
	return []Spec{{Capacity: 1}, {Capacity: 4}, {Mode: Queue, Capacity: 1, MaxDeliveries: 2}, {Mode: Queue, Capacity: 4, Policy: DropOldest},
		{Mode: Queue, Capacity: 2, Policy: Latest}, {Mode: Queue, Capacity: 3, Policy: Fail}}
}

func FuzzHostilePages(f *testing.F) {
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 24 {
		f.Add(byte(i), randomProgram(random, 40))
	}
	f.Fuzz(func(t *testing.T, spec byte, program []byte) {
		if len(program) > 12*4096 {
			return
		}
		specs := hostileSpecs()
		newHostile(t, specs[int(spec)%len(specs)]).run(program)
	})
}

func randomProgram(random *rand.Rand, moves int) []byte {
	program := make([]byte, 12*moves)
	for i := range program {
		program[i] = byte(random.Uint32())
	}
	return program
}

// This test calls the method run with random programs, as the fuzz test does.
func TestLiesSpoilNothingButFrames(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	for i := range 20 {
		for _, spec := range hostileSpecs() {
			t.Run("", func(t *testing.T) {
				h := newHostile(t, spec)
				h.run(randomProgram(random, 500+i))
			})
		}
	}
}

// One goroutine overwrites words of the files while all members work.
func TestALiarCannotStopOthers(t *testing.T) {
	for _, spec := range hostileSpecs() {
		t.Run(spec.Mode.String()+" "+spec.Policy.String(), func(t *testing.T) {
			h := newHostile(t, spec)
			h.regions = h.regions[:len(h.regions)-1] // no lies in the roster: only the service writes it
			var stop atomic.Bool
			var liars, honest sync.WaitGroup
			liars.Go(func() {
				random := rand.New(rand.NewPCG(5, 6))
				for !stop.Load() {
					h.lie(random.Uint64(), random.Uint64()&0xffff, random.Uint64())
				}
			})
			const calls = 60
			brief := func(call func(context.Context) error) {
				for range calls {
					ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
					h.checkError(call(ctx))
					cancel()
				}
			}
			for _, p := range h.producers {
				record := h.record
				honest.Go(func() {
					brief(func(ctx context.Context) error { _, err := p.Publish(ctx, &record); return err })
				})
				honest.Go(func() {
					brief(func(ctx context.Context) error { _, err := awaitReclaim(ctx, p); return err })
				})
			}
			for _, c := range h.consumers {
				honest.Go(func() {
					var f Frame
					brief(func(ctx context.Context) error {
						if err := c.Take(ctx, &f); err != nil {
							return err
						}
						h.checkFrame(&f)
						return errors.Join(c.Acknowledge(&f), c.Release(&f, Fence{Word: 1, Value: 1}))
					})
				})
			}
			honest.Wait()
			stop.Store(true)
			liars.Wait()
		})
	}
}

// In this test, a lie is a wrong value that a member writes into its file. Each lie leads to an error whose text describes the lie.
func TestLiesThatAreFound(t *testing.T) {
	for name, c := range map[string]struct {
		spec Spec
		lie  func(h *hostile)
		want error
	}{
		"a record of another number":     {lie: func(h *hostile) { h.producers[0].track.records[1].seq.Store(65) }, want: ErrFrame},
		"a record that is being written": {lie: func(h *hostile) { h.producers[0].track.records[1].seq.Store(0) }, want: ErrFrame},
		"a block beyond the numbers":     {lie: func(h *hostile) { h.producers[0].track.records[1].block.Store(1 << 63) }, want: ErrFrame},
		"a buffer beyond the numbers":    {lie: func(h *hostile) { h.producers[0].track.records[1].buffer.Store(1 << 63) }, want: ErrFrame},
		"more bytes than numbers":        {lie: func(h *hostile) { h.producers[0].track.records[1].bytes.Store(1 << 63) }, want: ErrFrame},
		"a time beyond the numbers":      {lie: func(h *hostile) { h.producers[0].track.records[1].time.Store(1 << 63) }, want: ErrFrame},
		"meta that is not UTF-8": {lie: func(h *hostile) {
			h.producers[0].track.meta[1][0].Store(0xff_61_0001_0001)
			h.producers[0].track.records[1].small.Store(6 << 32)
		}, want: ErrFrame},
		"a shape beyond the numbers":      {lie: func(h *hostile) { h.producers[0].track.descriptions[1].shape[0].Store(1 << 63) }, want: ErrFrame},
		"no block":                        {lie: func(h *hostile) { h.producers[0].track.records[1].block.Store(0) }, want: ErrFrame},
		"a fence of no word":              {lie: func(h *hostile) { h.producers[0].track.records[1].small.Store(MaxWord + 1) }, want: ErrFrame},
		"a fence that no word reaches":    {lie: func(h *hostile) { h.producers[0].track.records[1].ready.Store(MaxFenceValue + 1) }, want: ErrFrame},
		"flags that there are not":        {lie: func(h *hostile) { h.producers[0].track.records[1].small.Store(2 << 16) }, want: ErrFrame},
		"more meta than there is":         {lie: func(h *hostile) { h.producers[0].track.records[1].small.Store((MaxMetaBytes + 1) << 32) }, want: ErrFrame},
		"meta that is none":               {lie: func(h *hostile) { h.producers[0].track.records[1].small.Store(3 << 32) }, want: ErrFrame},
		"too many dimensions":             {lie: func(h *hostile) { h.producers[0].track.descriptions[1].counts.Store(MaxDims + 1) }, want: ErrFrame},
		"an element type without an end":  {lie: func(h *hostile) { h.producers[0].track.descriptions[1].name[1].Store(1 << 63) }, want: ErrFrame},
		"an element type without a name":  {lie: func(h *hostile) { h.producers[0].track.descriptions[1].name[0].Store(0) }, want: ErrFrame},
		"an entry of the wrong producer":  {lie: func(h *hostile) { h.sequencer().order[1].Store(uint64(newEntry(1, 1))) }, want: ErrFrame},
		"an entry of nobody":              {lie: func(h *hostile) { h.sequencer().order[1].Store(uint64(newEntry(1, 17))) }, want: ErrFrame},
		"a tail that goes back":           {lie: func(h *hostile) { h.consumers[0].take(); h.sequencer().tail.Store(0) }, want: ErrCorrupt},
		"a tail that is far ahead":        {lie: func(h *hostile) { h.sequencer().tail.Store(uint64(newTail(1000, 0, h.rig.host.roster.version.Load()))) }, want: ErrCorrupt},
		"a record of another, in a queue": {spec: Spec{Mode: Queue}, lie: func(h *hostile) { h.producers[0].track.records[1].seq.Store(65) }, want: ErrFrame},
	} {
		t.Run(name, func(t *testing.T) {
			c.spec.Capacity = 4
			h := newHostile(t, c.spec)
			_, err := h.producers[0].TryPublish(&h.record)
			require.NoError(t, err)
			c.lie(h)
			require.ErrorIs(t, h.consumers[0].takeError(), c.want)
			if errors.Is(c.want, ErrFrame) {
				h.consumers[0].none()
				_, err := h.producers[0].TryPublish(&h.record)
				require.NoError(t, err)
				f := h.consumers[0].take()
				assert.EqualValues(t, 2, f.Number, "the next frame comes")
				h.consumers[0].acknowledgeOrRelease(f)
			}
		})
	}
}

// The frames that a consumer missed before a frame that it cannot take count as missed before the next frame that it takes.
func TestFramesMissedBeforeACorruptFrameCountForTheNextFrame(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2, Policy: DropOldest})
	p, c := r.producer(8), r.consumer(MemberSpec{Policy: DropOldest})
	for range 5 {
		p.publish()
	}
	p.track.records[4].block.Store(0)
	require.ErrorIs(t, c.takeError(), ErrFrame)
	f := c.take()
	assert.EqualValues(t, 5, f.Number)
	assert.EqualValues(t, 3, f.Missed)
	assert.EqualValues(t, 3, c.Counts().Missed)
	c.release(f)
	p.publish()
	assert.Zero(t, c.take().Missed)
}

func (h *hostile) sequencer() *sequencer { return &h.rig.host.sequencer }

func (c *testConsumer) acknowledgeOrRelease(f *Frame) {
	c.t.Helper()
	if c.mode == Queue {
		require.NoError(c.t, c.Acknowledge(f))
	}
	c.release(f)
}

// The sequencer must have an entry for each frame number that is less than the number in the tail. If an entry is missing, a consumer first
// tries again, because perhaps a producer stores the entry a moment later. If the entry does not appear, Take returns an error.
func TestAContradictionThatLastsEndsTheStream(t *testing.T) {
	h := newHostile(t, Spec{Capacity: 4})
	for range 2 {
		_, err := h.producers[0].TryPublish(&h.record)
		require.NoError(t, err)
	}
	h.sequencer().order[1].Store(0)
	h.consumers[0].none()
	require.ErrorIs(t, h.consumers[0].Take(within(t), &Frame{}), ErrCorrupt)
	h.consumers[2].none()
	h.sequencer().order[1].Store(uint64(newEntry(1, 0)))
	assert.EqualValues(t, 1, h.consumers[2].take().Number, "it has changed")
}

// Any member can store a wrong head, and so hide frames from consumers that trust it.
func TestAWrongHeadHidesNoFrameForGood(t *testing.T) {
	for name, head := range map[string]uint64{"after the newest": 4, "far ahead": 1 << 40, "beyond the numbers": 1<<64 - 1} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, Spec{Mode: Queue, Capacity: 4})
			p, c := r.producer(8), r.consumer(MemberSpec{})
			for range 3 {
				p.publish()
			}
			require.NoError(t, r.host.Close())
			for n := uint64(1); n <= 3; n++ {
				r.host.sequencer.head.Store(head)
				f := c.take() // no end of the queue, although the head says that all frames are done
				require.Equal(t, n, f.Number)
				c.acknowledge(f)
			}
			require.ErrorIs(t, c.takeError(), ErrEnded)
		})
	}
	t.Run("while no frame comes", func(t *testing.T) {
		r := newRig(t, Spec{Mode: Queue, Capacity: 4})
		p, c := r.producer(8), r.consumer(MemberSpec{})
		c.none() // reads every slot, so the next call need not
		p.publish()
		r.host.sequencer.head.Store(2)
		var f Frame
		require.NoError(t, c.Take(within(t), &f))
		require.EqualValues(t, 1, f.Number)
	})
	t.Run("while newer frames come", func(t *testing.T) {
		r := newRig(t, Spec{Mode: Queue, Capacity: 1 << 10})
		p, c := r.producer(headFrames+1), r.consumer(MemberSpec{})
		p.publish()
		r.host.sequencer.head.Store(2)
		for taken := 0; ; taken++ {
			require.Less(t, taken, headFrames, "the first frame does not come")
			p.publish()
			f := c.take()
			c.acknowledge(f)
			if f.Number == 1 {
				break
			}
		}
	})
}
