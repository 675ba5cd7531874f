package service

import (
	"context"
	"errors"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// channelRig is a channel with its pool. The blocks of the pool have at least 4,096 bytes.
type channelRig struct {
	testing.TB
	svc   *Service
	owner *Session
	pool  *Pool
	info  mempool.ChannelIdentity
}

func newChannelRig(t testing.TB, spec mempool.ChannelSpec, blocks uint64) *channelRig {
	t.Helper()
	svc := newService(t)
	owner := open(t, svc)
	p := createPool(t, owner, mempool.PoolSpec{Name: "p", Kind: mempool.Host, MaxBytes: blocks * 4096})
	spec.Name, spec.Pool = "frames", p.rec.Info.ID
	info, err := owner.MakeChannel(spec)
	require.NoError(t, err)
	return &channelRig{t, svc, owner, p, info}
}

// seat is a member of the channel, with the state of its client.
type seat struct {
	*worker
	rig    *channelRig
	member Joined
	came   []MemberCame // members that came with the reply of EnterChannel
	known  int          // how many MemberCame notices of the worker the seat has read
}

func (r *channelRig) sit(w *worker, spec MemberSpec) *seat {
	r.Helper()
	m, err := w.Channel(r.info.ID).Join(spec)
	require.NoError(r, err)
	return r.seat(w, m)
}

func (r *channelRig) seat(w *worker, m Joined) *seat {
	r.Helper()
	require.Len(r, m.Export.Files, 3)
	of := *r
	of.info = m.Channel
	return &seat{worker: w, rig: &of, member: m}
}

func (s *seat) config() shmchannel.MemberConfig {
	files := s.member.Export.Files
	return shmchannel.MemberConfig{Roster: files[0], Sequencer: files[1], Own: files[2], Seat: s.member.Seat, ID: s.member.ID}
}

func (s *seat) enter() {
	s.rig.Helper()
	others, err := s.Channel(s.rig.info.ID).Member(s.member.ID).Enter()
	require.NoError(s.rig, err)
	s.came = append(s.came, others...)
}

// arrived calls the function `add` for each member that the service has announced to the session and that has the given role. If the
// service has already closed a member's file, because the member has no seat any more, arrived skips the member.
func (s *seat) arrived(role MemberRole, add func(seat int, id uint64, f *os.File) error) {
	s.rig.Helper()
	s.others = append(s.others, told[MemberCame](s.worker)...)
	came := slices.Concat(s.came, s.others[s.known:])
	s.came, s.known = nil, len(s.others)
	s.svc.mu.Lock() // otherwise the service could close the file during this loop
	defer s.svc.mu.Unlock()
	for _, m := range came {
		if _, err := m.File.Stat(); err == nil && m.Role == role && m.Channel == s.rig.info.ID {
			require.NoError(s.rig, add(m.Seat, m.Member, m.File))
		}
	}
}

// leave removes the member from the service's state.
func (s *seat) leave() {
	s.rig.Helper()
	require.NoError(s.rig, s.Channel(s.rig.info.ID).Member(s.member.ID).Leave())
}

// source is a producer.
type source struct {
	*seat
	*shmchannel.Producer
	leases map[uint64]Lease // by block
}

func (r *channelRig) produce(w *worker) *source {
	r.Helper()
	s := &source{seat: r.sit(w, MemberSpec{Role: Producer}), leases: make(map[uint64]Lease)}
	var err error
	s.Producer, err = shmchannel.OpenProducer(s.config())
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, s.Close()) })
	s.enter()
	s.meet()
	return s
}

func (s *source) meet() {
	s.rig.Helper()
	s.arrived(Consumer, s.AddCursor)
}

func (s *source) alloc() Lease {
	s.rig.Helper()
	l := allocate(s.rig, s.Session, s.rig.pool, 10)
	s.leases[l.Grant().Block] = l
	return l
}

// publish publishes a block of the producer, and returns the number of the frame.
func (s *source) publish(l Lease, ready mempool.Fence) uint64 {
	s.rig.Helper()
	s.meet()
	info := l.Grant()
	n, err := s.TryPublish(&shmchannel.Record{Block: info.Block, Buffer: info.Buffer, Bytes: info.Bytes,
		Ready: shmchannel.Fence{Word: ready.Word, Value: ready.Value}, Description: &shmchannel.Description{DType: "uint8", Shape: []uint64{10}}})
	require.NoError(s.rig, err)
	return n
}

// send allocates a block and publishes that block.
func (s *source) send() Lease {
	s.rig.Helper()
	l := s.alloc()
	s.publish(l, mempool.Fence{})
	return l
}

// back returns the leases whose blocks the consumers have released.
func (s *source) back() (leases []Lease) {
	s.rig.Helper()
	s.meet()
	returned, err := s.Reclaim()
	require.NoError(s.rig, err)
	for _, r := range returned {
		leases = append(leases, s.leases[r.Block])
	}
	return leases
}

// sink is a consumer.
type sink struct {
	*seat
	*shmchannel.Consumer
}

func (r *channelRig) consume(w *worker, spec MemberSpec) *sink {
	r.Helper()
	spec.Role = Consumer
	m, err := w.Channel(r.info.ID).Join(spec)
	require.NoError(r, err)
	return r.seated(w, m)
}

// seated is the client of a consumer that has joined: it maps the consumer's files, and enters.
func (r *channelRig) seated(w *worker, m Joined) *sink {
	r.Helper()
	s := &sink{seat: r.seat(w, m)}
	var err error
	s.Consumer, err = shmchannel.OpenConsumer(shmchannel.ConsumerConfig{MemberConfig: s.config()})
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, s.Close()) })
	s.enter()
	return s
}

func (s *sink) try() (*shmchannel.Frame, error) {
	s.rig.Helper()
	s.arrived(Producer, s.AddTrack)
	f := new(shmchannel.Frame)
	ok, err := s.TryTake(f)
	if !ok {
		return nil, err
	}
	return f, err
}

// next takes the next frame. The test fails if there is none.
func (s *sink) next() *shmchannel.Frame {
	s.rig.Helper()
	f, err := s.try()
	require.NoError(s.rig, err)
	require.NotNil(s.rig, f, "there is no frame")
	return f
}

func (s *sink) done(f *shmchannel.Frame, fence mempool.Fence) {
	s.rig.Helper()
	if s.rig.info.Mode == mempool.WorkQueue {
		require.NoError(s.rig, s.Acknowledge(f))
	}
	require.NoError(s.rig, s.Release(f, shmchannel.Fence{Word: fence.Word, Value: fence.Value}))
}

// quit removes the consumer in the shared memory and in the service's state.
func (s *sink) quit() {
	s.rig.Helper()
	require.NoError(s.rig, s.Leave())
	s.leave()
}

// end ends the session of a worker whose process lives on. The function gone ends the process.
func (w *worker) end() (gone func(), reclaimed <-chan struct{}) {
	process := make(chan struct{})
	reclaimed = w.End(mempool.SessionLeft, "", process)
	return func() { close(process); <-reclaimed }, reclaimed
}

// stands counts the blocks of the pool in the service's state: those that buffers use, and free ones that processes keep.
func (r *channelRig) stands() (leased, held uint64) {
	r.svc.mu.Lock()
	defer r.svc.mu.Unlock()
	r.pool.recharge()
	return r.pool.rec.Leased / 4096, r.pool.rec.Held / 4096
}

// awaitStands waits until stands returns the given counts: the service reads shared memory only from time to time.
func (r *channelRig) awaitStands(leased, held uint64) {
	r.Helper()
	r.eventually(func() bool {
		l, h := r.stands()
		return l == leased && h == held
	})
}

func (r *channelRig) eventually(so func() bool) {
	r.Helper()
	for !so() {
		require.NoError(r, r.Context().Err())
		time.Sleep(time.Millisecond)
	}
}

// nothingLeft asserts that the service has no state of the channel.
func (r *channelRig) nothingLeft() bool {
	r.svc.mu.Lock()
	defer r.svc.mu.Unlock()
	return r.svc.ledger.Channels.Len() == 0 && len(r.svc.channels.all) == 0 && r.pool.rec.Channels == 0 && len(r.pool.rec.Producers) == 0
}

// kept returns how many buffers the channel keeps.
func (r *channelRig) kept() int {
	r.svc.mu.Lock()
	defer r.svc.mu.Unlock()
	return len(r.svc.ledger.Channels.Get(r.info.ID).Retained)
}

// room says whether a block can be allocated now.
func (r *channelRig) room() bool {
	r.Helper()
	l, err := r.owner.allocate(context.Background(), r.pool.rec.Info.ID, mempool.Bytes(10), 0)
	if errors.Is(err, mempool.ErrLimit) {
		return false
	}
	require.NoError(r, err)
	release(r, l)
	return true
}
