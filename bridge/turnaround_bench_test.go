package bridge

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
)

// BenchmarkTurnAround measures a hand-over without its consumer: a pool has room for one buffer, and a producer in the
// service's process allocates, publishes, and waits for the next. turn-ns is the median time from when a release is in
// the ring until the next frame is in the consumer's, turn-p10-ns the tenth percentile.
func BenchmarkTurnAround(b *testing.B) {
	svc, path := serve(b, ServerConfig{})
	s, err := svc.OpenSession(mempool.Self(), nil)
	require.NoError(b, err)
	defer func() { <-s.End(nil) }()
	p, err := s.CreatePool(hostPool("p", 1<<20))
	require.NoError(b, err)
	ch, err := s.CreateChannel(mempool.ChannelSpec{Name: "frames", Pool: p.Info().ID, Mode: mempool.WorkQueue, Capacity: 2, ThroughService: true})
	require.NoError(b, err)
	consumer := listenTo(b, path, ch.Info().ID)
	turns := make(chan []time.Duration, 1)
	var over atomic.Bool
	go func() { turns <- consumer.answer(&over) }()
	send := func() {
		l, err := s.Allocate(b.Context(), p.Info().ID, mempool.Bytes(1<<20), patience)
		if err == nil {
			_, err = l.Bytes()
		}
		if err == nil {
			_, err = ch.Publish(b.Context(), l, mempool.FrameOptions{Wait: patience})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	for range 1000 {
		send()
	}
	b.ReportAllocs()
	for b.Loop() {
		send()
	}
	over.Store(true)
	took := <-turns
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2]), "turn-ns")
	b.ReportMetric(float64(took[len(took)/10]), "turn-p10-ns")
}

// pondering is how long the consumer has a frame: the service has gone to wait by then.
const pondering = 15 * time.Microsecond

// listener is a consumer that looks into its ring without a pause, and does nothing with a frame.
type listener struct {
	*raw
	ring         *shmring.Ring
	subscription uint64
}

// listenTo subscribes to a channel.
func listenTo(t testing.TB, path string, channel uint64) *listener {
	r := dialRaw(t, path)
	r.ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{featureTimelines, featureChannels, featureRings}}, &wire.HelloReply{})
	r.send(2, &wire.Ring{})
	_, fds, err := r.conn.Recv(r.buf)
	require.NoError(t, err)
	files := takeFiles(fds, 2)
	ring, err := shmring.Open(shmring.Files{Reads: files[0], Writes: files[1]})
	require.NoError(t, err)
	closeFiles(files)
	t.Cleanup(func() { require.NoError(t, ring.Close()) })
	r.ask(3, &wire.Open{Name: "p"}, &wire.PoolReply{})
	var sub wire.SubscribeReply
	r.ask(4, &wire.Subscribe{Channel: channel, Credit: 8}, &sub)
	return &listener{r, ring, sub.Subscription}
}

// answer releases frames until it is over, and returns how long it took until the next came.
func (l *listener) answer(over *atomic.Bool) (took []time.Duration) {
	credit, _ := wire.AppendRequest(nil, 0, &wire.Credit{Subscription: l.subscription, Frames: 1})
	lease := notice[*wire.Frame](l.raw).Lease.ID
	if err := l.conn.Send([]byte{packetBack}, nil); err != nil {
		l.Errorf("the session does not go over to the ring: %v", err)
		return nil
	}
	buf := make([]byte, shmring.MaxPacket)
	var packet []byte
	for {
		packet, _ = wire.AppendRequest(packet[:0], 0, &wire.Release{Lease: lease})
		for came := time.Now(); time.Since(came) < pondering; { // as if it worked
		}
		begun := time.Now()
		l.put(packet)
		l.put(credit)
		for l.ring.Empty() {
			if over.Load() {
				return took
			}
		}
		took = append(took, time.Since(begun))
		n, kind, err := l.ring.Take(buf)
		if err != nil || kind != shmring.Packet {
			l.Errorf("found %v in the ring: %v", kind, err)
			return took
		}
		lease = leaseIn(buf[:n])
	}
}

// put puts a packet into the ring, and wakes the service if it sleeps.
func (l *listener) put(packet []byte) {
	done, wake, err := l.ring.Put(packet)
	if err != nil || !done {
		l.Errorf("nothing can be put into the ring: %v", err)
		runtime.Goexit()
	}
	if wake {
		_ = l.conn.Send([]byte{packetLook}, nil)
	}
}

// leaseIn is the id of the lease in a frame's packet. To decode it all would take a good part of what is measured.
func leaseIn(packet []byte) uint64 {
	value := packet[bytes.Index(packet, []byte("\xa2id"))+3:]
	switch value[0] {
	case 0xcc:
		return uint64(value[1])
	case 0xcd:
		return uint64(binary.BigEndian.Uint16(value[1:]))
	case 0xce:
		return uint64(binary.BigEndian.Uint32(value[1:]))
	}
	return uint64(value[0])
}
