package shmchannel

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// rig is a channel whose members all live in the test process.
type rig struct {
	t         testing.TB
	host      *Host
	producers []*testProducer
	consumers []*testConsumer
	spin      time.Duration
	reached   func(Fence) bool
}

// testProducer is a producer with its blocks.
type testProducer struct {
	*Producer
	t      testing.TB
	member *Member
	free   []uint64
	count  uint64
	record Record
}

type testConsumer struct {
	*Consumer
	t      testing.TB
	member *Member
}

var bytes64 = &Description{DType: "uint8", Shape: []uint64{64}}

func newRig(t testing.TB, spec Spec) *rig {
	t.Helper()
	h, err := NewHost(spec, nil, nil)
	require.NoError(t, err)
	r := &rig{t: t, host: h}
	t.Cleanup(func() {
		for _, p := range r.producers {
			assert.NoError(t, p.Close())
		}
		for _, c := range r.consumers {
			assert.NoError(t, c.Close())
		}
		assert.NoError(t, h.Free())
	})
	return r
}

func (r *rig) config(m *Member) MemberConfig {
	return MemberConfig{Roster: r.host.RosterFile(), Sequencer: r.host.SequencerFile(), Own: m.File(), Seat: m.Seat, ID: m.ID, Spin: r.spin}
}

// producer adds a producer with the given number of blocks to the channel. No two producers have the same block numbers.
func (r *rig) producer(blocks int) *testProducer {
	r.t.Helper()
	p := r.openProducer(blocks)
	require.NoError(r.t, r.host.Join(p.member))
	return p
}

func (r *rig) openProducer(blocks int) *testProducer {
	r.t.Helper()
	m, err := r.host.Add(MemberSpec{Role: ProducerRole, PID: uint32(len(r.producers) + 1)})
	require.NoError(r.t, err)
	p, err := OpenProducer(r.config(m))
	require.NoError(r.t, err)
	for _, c := range r.host.Members(nil, ConsumerRole) {
		require.NoError(r.t, p.AddCursor(c.Seat, c.ID, c.File()))
	}
	for _, c := range r.consumers {
		require.NoError(r.t, c.addTrack(m))
	}
	tp := &testProducer{Producer: p, t: r.t, member: m, record: Record{Description: bytes64, Bytes: 64}}
	for i := range blocks {
		tp.free = append(tp.free, m.ID<<32|uint64(i+1))
	}
	r.producers = append(r.producers, tp)
	return tp
}

func (r *rig) consumer(spec MemberSpec) *testConsumer {
	r.t.Helper()
	c := r.openConsumer(spec)
	require.NoError(r.t, r.host.Join(c.member))
	return c
}

func (r *rig) openConsumer(spec MemberSpec) *testConsumer {
	r.t.Helper()
	spec.Role = ConsumerRole
	m, err := r.host.Add(spec)
	require.NoError(r.t, err)
	c, err := OpenConsumer(ConsumerConfig{MemberConfig: r.config(m), Reached: r.reached})
	require.NoError(r.t, err)
	for _, p := range r.host.Members(nil, ProducerRole) {
		require.NoError(r.t, c.AddTrack(p.Seat, p.ID, p.File()))
	}
	for _, p := range r.producers {
		require.NoError(r.t, p.addCursor(m))
	}
	tc := &testConsumer{Consumer: c, t: r.t, member: m}
	r.consumers = append(r.consumers, tc)
	return tc
}

// addCursor and addTrack return no error if the member is closed already.
func (p *testProducer) addCursor(m *Member) error {
	return unlessLeft(p.AddCursor(m.Seat, m.ID, m.File()))
}

func (c *testConsumer) addTrack(m *Member) error {
	return unlessLeft(c.AddTrack(m.Seat, m.ID, m.File()))
}

func unlessLeft(err error) error {
	if errors.Is(err, ErrLeft) {
		return nil
	}
	return err
}

// next returns a record with a free block of the producer and unique content.
func (p *testProducer) next() *Record {
	p.t.Helper()
	if len(p.free) == 0 {
		p.reclaim()
	}
	require.NotEmpty(p.t, p.free, "the producer has no block left")
	p.count++
	p.record.Block = p.free[len(p.free)-1]
	p.record.Buffer = p.member.ID<<32 | p.count
	return &p.record
}

func (p *testProducer) reclaim() {
	p.t.Helper()
	back, err := p.Reclaim()
	require.NoError(p.t, err)
	for _, b := range back {
		p.free = append(p.free, b.Block)
	}
}

func (p *testProducer) publish() uint64 {
	p.t.Helper()
	n, err := p.TryPublish(p.next())
	require.NoError(p.t, err)
	p.free = p.free[:len(p.free)-1]
	return n
}

func (p *testProducer) publishError() error {
	p.t.Helper()
	_, err := p.TryPublish(p.next())
	require.Error(p.t, err)
	p.count--
	return err
}

// take takes a frame and fails the test if there is no frame.
func (c *testConsumer) take() *Frame {
	c.t.Helper()
	f := &Frame{}
	ok, err := c.TryTake(f)
	require.NoError(c.t, err)
	require.True(c.t, ok, "there is no frame")
	return f
}

func (c *testConsumer) none() {
	c.t.Helper()
	ok, err := c.TryTake(&Frame{})
	require.NoError(c.t, err)
	require.False(c.t, ok, "there is a frame")
}

func (c *testConsumer) takeError() error {
	c.t.Helper()
	_, err := c.TryTake(&Frame{})
	require.Error(c.t, err)
	return err
}

func (c *testConsumer) release(frames ...*Frame) {
	c.t.Helper()
	for _, f := range frames {
		require.NoError(c.t, c.Release(f, Fence{}))
	}
}

func (c *testConsumer) acknowledge(frames ...*Frame) {
	c.t.Helper()
	for _, f := range frames {
		require.NoError(c.t, c.Acknowledge(f))
	}
	c.release(frames...)
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// reclaimer is a Producer.
type reclaimer interface {
	AwaitBack(ctx context.Context, look func() bool) error
	Reclaim() ([]Returned, error)
	Outstanding() int
}

// awaitReclaim waits until blocks have come back, and returns them. It returns at once if the channel has no block of the producer.
func awaitReclaim(ctx context.Context, p reclaimer) (back []Returned, err error) {
	ended := p.AwaitBack(ctx, func() bool {
		back, err = p.Reclaim()
		return err != nil || len(back) > 0 || p.Outstanding() == 0
	})
	return back, errors.Join(err, ended)
}
