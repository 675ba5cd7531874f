package bridge

import (
	"context"
	"encoding/binary"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/internal/session"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// partner is a raw client. Its session has the features for channels and timelines. The client has sealed its own timeline: no client can
// map the timeline's page for writing any more.
type partner struct {
	*raw
	q        uint32
	timeline uint64
	page     *mempool.Page
	notices  []wire.Notice // the notices that came without files
	others   []came
	memory   []byte // mapped memory of the pool
}

// came is a MemberCame, with the file that came with the notice.
type came struct {
	wire.MemberCame
	file *os.File
}

func sharing(t testing.TB, path string) *partner {
	t.Helper()
	p := &partner{raw: dialRaw(t, path)}
	features := []string{wire.FeatureTimelines, wire.FeatureChannels}
	var hello wire.HelloReply
	p.get(&wire.Hello{Versions: []uint64{1}, Features: features}, &hello)
	require.Equal(t, features, hello.Features)
	var tl wire.TimelineReply
	files := p.get(&wire.GetTimeline{}, &tl)
	var err error
	p.page, err = mempool.MapPage(mempool.Export{Files: files}, true)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.page.Close()) })
	p.timeline = tl.Timeline
	p.get(&wire.Seal{}, &wire.EmptyReply{})
	return p
}

// receive receives a packet. If the packet is a notice, receive keeps the notice in p and returns nil for h.
func (p *partner) receive() (h *wire.Header, files []*os.File) {
	p.Helper()
	n, fds, err := p.Conn.Recv(p.Buffer)
	require.NoError(p, err)
	files = session.TakeFiles(fds, wire.MaxFDs)
	p.Cleanup(func() { session.CloseFiles(files) })
	header, err := wire.DecodeHeader(p.Buffer[:n])
	require.NoError(p, err)
	if header.Q != 0 {
		return &header, files
	}
	notice, err := header.DecodeNotice()
	require.NoError(p, err)
	if m, ok := notice.(*wire.MemberCame); ok {
		require.Len(p, files, 1)
		p.others = append(p.others, came{*m, files[0]})
	} else {
		p.notices = append(p.notices, notice)
	}
	return nil, nil
}

// call sends a request, receives the reply and returns the files of the reply.
func (p *partner) call(m wire.Request, into wire.Reply) ([]*os.File, error) {
	p.Helper()
	p.q++
	p.Send(p.q, m)
	for {
		if h, files := p.receive(); h != nil {
			require.Equal(p, p.q, h.Q)
			return files, h.DecodeReply(into)
		}
	}
}

func (p *partner) get(m wire.Request, into wire.Reply) []*os.File {
	p.Helper()
	files, err := p.call(m, into)
	require.NoError(p, err)
	return files
}

func (p *partner) denied(m wire.Request, code wire.Code) {
	p.Helper()
	_, err := p.call(m, &wire.EmptyReply{})
	require.ErrorIs(p, err, code)
}

// await receives packets until a notice of type N has come.
func await[N wire.Notice](p *partner) N {
	p.Helper()
	for {
		for i, n := range p.notices {
			if want, ok := n.(N); ok {
				p.notices = append(p.notices[:i], p.notices[i+1:]...)
				return want
			}
		}
		if h, _ := p.receive(); h != nil {
			p.Fatalf("a reply to request %d came, which was not expected", h.Q)
		}
	}
}

// pool maps the memory of a pool of kind host.
func (p *partner) pool(reply *wire.PoolReply, files []*os.File) uint64 {
	p.Helper()
	require.Len(p, files, 1)
	var err error
	p.memory, err = unix.Mmap(int(files[0].Fd()), 0, int(reply.Pool.MaxBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(p, err)
	p.Cleanup(func() { assert.NoError(p, unix.Munmap(p.memory)) })
	return reply.Pool.ID
}

// makeStream makes the pool "p" with the given number of bytes, and the channel "c" in this pool. spec has the other fields of the channel.
func (p *partner) makeStream(bytes uint64, spec wire.MakeChannel) (pool, channel uint64) {
	p.Helper()
	var made wire.PoolReply
	pool = p.pool(&made, p.get(&wire.Create{Name: "p", Kind: string(mempool.Host), MaxBytes: bytes}, &made))
	spec.Name, spec.Pool = "c", pool
	var reply wire.ChannelReply
	p.get(&spec, &reply)
	return pool, reply.Channel.ID
}

// findStream opens the pool "p" and the channel "c".
func (p *partner) findStream() (pool, channel uint64) {
	p.Helper()
	var made wire.PoolReply
	pool = p.pool(&made, p.get(&wire.Open{Name: "p"}, &made))
	var found wire.ChannelReply
	p.get(&wire.Find{Name: "c"}, &found)
	return pool, found.Channel.ID
}

// seat is a member whose files have come and are mapped.
type seat struct {
	wire.JoinReply
	channel uint64
	config  shmchannel.MemberConfig
	known   int // how many of the partner's notices of members this seat has read
}

func (p *partner) take(m *wire.Join) *seat {
	p.Helper()
	s := &seat{channel: m.Channel}
	files := p.get(m, &s.JoinReply)
	require.Len(p, files, 3)
	s.config = shmchannel.MemberConfig{Roster: files[0], Sequencer: files[1], Own: files[2], Seat: int(s.Seat), ID: s.Member}
	return s
}

// source is a seat that is a producer.
type source struct {
	*seat
	*shmchannel.Producer
	p      *partner
	pool   uint64
	leases map[uint64]wire.Grant // by block
	at     map[uint64]uint64     // offsets of the blocks in the pool
	free   []uint64
}

func (p *partner) produce(pool, channel uint64) *source {
	p.Helper()
	s := &source{seat: p.take(&wire.Join{Channel: channel, Role: "producer"}), p: p, pool: pool, leases: make(map[uint64]wire.Grant), at: make(map[uint64]uint64)}
	var err error
	s.Producer, err = shmchannel.OpenProducer(s.config)
	require.NoError(p, err)
	p.Cleanup(func() { assert.NoError(p, s.Close()) })
	p.get(&wire.Enter{Channel: channel, Member: s.Member}, &wire.EmptyReply{})
	return s
}

// meet passes the files of consumers that have come to the producer.
func (s *source) meet() {
	s.p.Helper()
	for ; s.known < len(s.p.others); s.known++ {
		if m := s.p.others[s.known]; m.Role == "consumer" && m.Channel == s.channel {
			require.NoError(s.p, s.AddCursor(int(m.Seat), m.Member, m.file))
		}
	}
}

// alloc allocates a block of the pool.
func (s *source) alloc(bytes uint64) wire.Grant {
	s.p.Helper()
	var l wire.GrantReply
	s.p.get(&wire.Alloc{Pool: s.pool, Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{bytes}}}, &l)
	if l.Grant.Export != nil {
		s.at[l.Grant.Block] = binary.LittleEndian.Uint64(l.Grant.Export.Data)
	}
	s.leases[l.Grant.Block] = l.Grant
	s.free = append(s.free, l.Grant.Block)
	return l.Grant
}

// publish writes n into a free block and publishes the block as a frame. A producer can publish only if it has the file of each consumer of
// the channel. If the file of a consumer is missing, publish receives packets until the service has sent the file.
func (s *source) publish(n uint64, ready shmchannel.Fence) (number, block uint64) {
	s.p.Helper()
	require.NotEmpty(s.p, s.free)
	block = s.free[0]
	l := s.leases[block]
	binary.LittleEndian.PutUint64(s.p.memory[s.at[block]:], n)
	record := &shmchannel.Record{Block: block, Buffer: l.Buffer, Bytes: l.Bytes, Ready: ready,
		Description: &shmchannel.Description{DType: "uint8", Shape: []uint64{l.Bytes}}}
	for {
		s.meet()
		number, err := s.Publish(context.Background(), record)
		if errors.Is(err, shmchannel.ErrUnknownMember) {
			s.p.receive()
			continue
		}
		require.NoError(s.p, err)
		s.free = s.free[1:]
		return number, block
	}
}

// reclaim returns the blocks that have come back by now.
func (s *source) reclaim() (back []shmchannel.Returned) {
	s.p.Helper()
	s.meet()
	back, err := s.Reclaim()
	require.NoError(s.p, err)
	for _, r := range back {
		s.free = append(s.free, r.Block)
	}
	return back
}

// awaitReclaim waits until at least one block has come back.
func (s *source) awaitReclaim() []shmchannel.Returned {
	s.p.Helper()
	for {
		s.meet()
		var back []shmchannel.Returned
		var err error
		ended := s.AwaitBack(context.Background(), func() bool {
			back, err = s.Reclaim()
			return err != nil || len(back) > 0
		})
		require.NoError(s.p, ended)
		if errors.Is(err, shmchannel.ErrUnknownMember) {
			s.p.receive()
			continue
		}
		require.NoError(s.p, err)
		return back
	}
}

// sink is a seat that is a consumer.
type sink struct {
	*seat
	*shmchannel.Consumer
	p *partner
}

func (p *partner) consume(m wire.Join) *sink {
	p.Helper()
	m.Role = "consumer"
	s := &sink{seat: p.take(&m), p: p}
	var err error
	s.Consumer, err = shmchannel.OpenConsumer(shmchannel.ConsumerConfig{MemberConfig: s.config})
	require.NoError(p, err)
	p.Cleanup(func() { assert.NoError(p, s.Close()) })
	p.get(&wire.Enter{Channel: m.Channel, Member: s.Member}, &wire.EmptyReply{})
	return s
}

// next takes the next frame.
func (s *sink) next() *shmchannel.Frame {
	s.p.Helper()
	f := new(shmchannel.Frame)
	for {
		for ; s.known < len(s.p.others); s.known++ {
			if m := s.p.others[s.known]; m.Role == "producer" && m.Channel == s.channel {
				require.NoError(s.p, s.AddTrack(int(m.Seat), m.Member, m.file))
			}
		}
		err := s.Take(context.Background(), f)
		if errors.Is(err, shmchannel.ErrUnknownMember) {
			s.p.receive()
			continue
		}
		require.NoError(s.p, err)
		return f
	}
}

// read maps the block of a frame and reads what publish wrote.
func (s *sink) read(f *shmchannel.Frame) uint64 {
	s.p.Helper()
	var m wire.MapReply
	s.p.get(&wire.Map{Channel: s.channel, Block: f.Block}, &m)
	require.NotZero(s.p, m.Generation)
	return binary.LittleEndian.Uint64(s.p.memory[binary.LittleEndian.Uint64(m.Export.Data):])
}
