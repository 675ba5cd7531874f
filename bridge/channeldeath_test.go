package bridge

import (
	"bufio"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
)

// loud stands for a testing.T in code that runs in a child.
type loud struct {
	testing.TB
}

func (loud) Helper()                           {}
func (loud) Cleanup(func())                    {}
func (loud) Errorf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (loud) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }
func (loud) FailNow()                          { panic("failed") }

func init() {
	children["member-produce"] = memberProduce
	children["member-consume"] = memberConsume
}

// memberProduce publishes the frames 1 and 2 of the channel "c". The content of frame 2 is never complete.
func memberProduce() error {
	p := sharing(loud{}, os.Getenv("POOLBRIDGE_SOCKET"))
	s := p.produce(p.findStream())
	s.alloc(100)
	s.alloc(100)
	s.publish(1, shmchannel.Fence{})
	s.publish(2, shmchannel.Fence{Word: 3, Value: 7})
	fmt.Println("published")
	bufio.NewScanner(os.Stdin).Scan()
	return nil
}

// memberConsume takes one frame of the channel "c" for each line that it reads.
func memberConsume() error {
	p := sharing(loud{}, os.Getenv("POOLBRIDGE_SOCKET"))
	_, channel := p.findStream()
	c := p.consume(wire.Join{Channel: channel})
	fmt.Println("ready")
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println("has", c.read(c.next()))
	}
	return nil
}

func TestFramesOfAKilledProducerAreTakenAndTheirBlocksComeBack(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(2*4096, wire.MakeChannel{Capacity: 2, Mode: "queue"})
	c := a.consume(wire.Join{Channel: channel})
	producer := spawn(t, "member-produce", r.path, nil)
	require.Equal(t, "published", producer.says())
	first := c.next()
	producer.kill()
	second := c.next()
	assert.EqualValues(t, 1, c.read(first))
	assert.EqualValues(t, 2, c.read(second))

	page := a.timelineOf(second.Producer.Timeline)
	err := page.Await(t.Context(), mempool.Fence{Timeline: second.Ready.Timeline, Word: second.Ready.Word, Value: second.Ready.Value})
	assert.ErrorIs(t, err, ErrProducerDied, "the wait is let go, and says so")
	for _, f := range []*shmchannel.Frame{first, second} {
		a.denied(&wire.Alloc{Pool: pool, Tensor: convert.WireTensor(mempool.Bytes(2 * 4096))}, wire.CodeLimit)
		require.NoError(t, c.Acknowledge(f))
		require.NoError(t, c.Release(f, shmchannel.Fence{}))
		a.Send(0, &wire.Dropped{Blocks: []uint64{f.Block}})
	}
	var l wire.GrantReply
	a.get(&wire.Alloc{Pool: pool, Tensor: convert.WireTensor(mempool.Bytes(4096)), Wait: 3_600_000}, &l)
}

// timelineOf maps the timeline of another session.
func (p *partner) timelineOf(id uint64) *mempool.Page {
	p.Helper()
	var reply wire.TimelineReply
	page, err := mempool.MapPage(mempool.Export{Files: p.get(&wire.GetTimeline{Timeline: id}, &reply)}, false)
	require.NoError(p, err)
	p.Cleanup(func() { assert.NoError(p, page.Close()) })
	return page
}

func TestAFrameOfAKilledConsumerGoesToAnother(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(1<<16, wire.MakeChannel{Capacity: 4, Mode: "queue"})
	dying := spawn(t, "member-consume", r.path, nil)
	require.Equal(t, "ready", dying.says())
	from := a.produce(pool, channel)
	from.alloc(100)
	from.publish(5, shmchannel.Fence{})
	dying.tell("take")
	require.Equal(t, "has 5", dying.says())
	c := a.consume(wire.Join{Channel: channel})
	dying.kill()
	f := c.next()
	assert.EqualValues(t, 5, c.read(f))
	require.NoError(t, c.Acknowledge(f))
	require.NoError(t, c.Release(f, shmchannel.Fence{}))
	assert.Len(t, from.awaitReclaim(), 1)
}

func TestAKilledConsumersBlockComesBackToItsProducer(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(1<<16, wire.MakeChannel{Capacity: 1})
	dying := spawn(t, "member-consume", r.path, nil)
	require.Equal(t, "ready", dying.says())
	from := a.produce(pool, channel)
	from.alloc(100)
	from.alloc(100)
	from.publish(1, shmchannel.Fence{})
	dying.tell("take")
	require.Equal(t, "has 1", dying.says())
	assert.Empty(t, from.reclaim())
	dying.kill()
	from.publish(2, shmchannel.Fence{}) // the channel has room once the service has removed the consumer
	back := from.awaitReclaim()
	require.Len(t, back, 1)
	assert.EqualValues(t, 1, back[0].Number)
}

func TestAServiceWithoutDescriptorsMakesNoMember(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	a := sharing(t, r.path)
	pool, channel := a.makeStream(1<<16, wire.MakeChannel{Capacity: 2})
	full := fillDescriptors(t)
	a.denied(&wire.Join{Channel: channel, Role: "producer"}, wire.CodeLimit)
	a.denied(&wire.MakeChannel{Name: "d", Pool: pool, Capacity: 2}, wire.CodeLimit)
	full()
	from, to := a.produce(pool, channel), a.consume(wire.Join{Channel: channel})
	from.alloc(100)
	from.publish(1, shmchannel.Fence{})
	assert.EqualValues(t, 1, to.read(to.next()))
}

// fillDescriptors uses up all free descriptors of this process, until the caller calls empty.
func fillDescriptors(t *testing.T) (empty func()) {
	t.Helper()
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: old.Max}))
	return func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }
}
