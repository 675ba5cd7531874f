package bench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/mempool"
)

// These are the settings of the streams of workload (b).
const (
	streamBytes    = 64 << 10
	streamCapacity = 64
	// streamPause is the pause between frames in the latency measurement. The pause is so long that all consumers wait for the next frame when
	// the producer publishes it. With 4 CPUs or more, the producer spins in the pause, like a producer that computes its frames.
	streamPause = time.Millisecond
	// mostPaced is the greatest number of frames in a measurement with pauses.
	mostPaced = 2000
)

// started is when this process began. startedAt is the same moment on the clock that all processes of the machine share. This process reads
// one clock after the other, and another program may run between these readings. So the process reads the two clocks several times, and
// uses the pair of readings that took the least time.
var started, startedAt = func() (begun time.Time, at time.Duration) {
	least := time.Duration(math.MaxInt64)
	for range 20 {
		var t unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
			panic(err) // every Linux kernel has this clock
		}
		if took := time.Since(before); took < least {
			least, begun, at = took, before, time.Duration(t.Nano())
		}
	}
	return begun, at
}()

// now returns the time on the clock that all processes share. It uses time.Since, because time.Since needs no system call.
func now() time.Duration { return startedAt + time.Since(started) }

// consumer is a process that takes frames: all frames of one channel, and then of the next channel.
type consumer interface {
	// begin lets the consumer take the frames of a channel. ready waits until the consumer has the first frame.
	begin(ctx context.Context, channel string) error
	ready() error
	// stamps returns the times at which the consumer had each frame except the first. The channel must be closed.
	stamps() ([]time.Duration, error)
	stop() error
}

// stream measures workload (b): how many frames go through a channel each second, and how long one frame takes when no other frame is on
// its way.
func stream(ctx context.Context, s *scene) error {
	return s.withPool(ctx, s.streamPool(), func(src *source) error {
		return s.streams(ctx, src, []way{
			{"go-go", s.streamOnce, s.startGoConsumer, false},
			{"go-python", s.streamOnce, s.startPythonConsumer, false},
			{"go-python leases", s.streamOnce, s.startLeasingConsumer, true},
			{"go-spinning python", s.streamOnce, s.startSpinningConsumer, true}, // each spinning consumer uses a whole CPU
			{"python-go", s.publishOnce, s.startGoConsumer, true},
		})
	})
}

// pythonStreams measures workload (g): streams from one Python process to other Python processes.
func pythonStreams(ctx context.Context, s *scene) error {
	return s.withPool(ctx, s.streamPool(), func(src *source) error {
		return s.streams(ctx, src, []way{
			{"python-python", s.publishOnce, s.startPythonConsumer, false},
			{"python-spinning", s.publishOnce, s.startSpinningConsumer, true},
		})
	})
}

// way is a kind of stream: how it sends frames, and which consumers take them. If `single` is true, there is only one consumer.
type way struct {
	name   string
	send   func(context.Context, *source, []consumer, time.Duration) (Durations, error)
	start  func(context.Context, *source) (consumer, error)
	single bool
}

// streamPool returns the spec of a pool that can hold the frames in a channel and the frames that members keep.
func (s *scene) streamPool() mempool.PoolSpec { return s.poolSpec(streamBytes * (streamCapacity + 32)) }

func (s *scene) streams(ctx context.Context, src *source, ways []way) error {
	for _, way := range ways {
		if err := s.streamBy(ctx, src, way); err != nil {
			return fmt.Errorf("%s: %w", way.name, err)
		}
	}
	return nil
}

// streamName returns the name of the workload with this number of consumers.
func streamName(way string, consumers int) string {
	if consumers == 1 {
		return fmt.Sprintf("stream/%s/1 consumer", way)
	}
	return fmt.Sprintf("stream/%s/%d consumers", way, consumers)
}

// streamBy measures streams to more and more consumers, each in a process of its own.
func (s *scene) streamBy(ctx context.Context, src *source, way way) (err error) {
	var consumers []consumer
	defer func() {
		for _, c := range consumers {
			err = errors.Join(err, c.stop())
		}
	}()
	for _, n := range s.consumers() {
		if way.single && n > 1 {
			return nil
		}
		for len(consumers) < n {
			c, err := way.start(ctx, src)
			if err != nil {
				return err
			}
			consumers = append(consumers, c)
		}
		fast, err := way.send(ctx, src, consumers, 0)
		if err != nil {
			return err
		}
		paced, err := way.send(ctx, src, consumers, streamPause)
		if err != nil {
			return err
		}
		fast.Each = paced.Each
		s.add(fast, streamName(way.name, n), streamBytes)
	}
	return nil
}

// openStream makes a channel with a first frame, and waits until each consumer has taken this frame.
func (s *scene) openStream(ctx context.Context, src *source, consumers []consumer) (*bridge.Channel, *bridge.Publisher, string, error) {
	s.channels++
	name := fmt.Sprintf("stream %d", s.channels)
	ch, err := src.makeChannel(ctx, mempool.ChannelSpec{Name: name, Capacity: streamCapacity})
	if err != nil {
		return nil, nil, "", err
	}
	p, err := ch.Publisher(ctx, mempool.Bytes(streamBytes))
	if err == nil {
		err = sendFrame(ctx, p, 0, nil)
	}
	for _, c := range consumers { // start all consumers before waiting for one, because a process takes long to start
		if err == nil {
			err = c.begin(ctx, name)
		}
	}
	for _, c := range consumers {
		if err == nil {
			err = c.ready()
		}
	}
	if err != nil {
		err = errors.Join(err, ch.Close(ctx)) // the consumers wait for frames until the channel is closed
	}
	return ch, p, name, err
}

// streamOnce sends frames with a pause between them. It returns how long each frame took to reach each consumer, and how long all frames
// took together.
func (s *scene) streamOnce(ctx context.Context, src *source, consumers []consumer, pause time.Duration) (d Durations, err error) {
	ch, p, _, err := s.openStream(ctx, src, consumers)
	if err != nil {
		return d, err
	}
	sent, err := s.sendFrames(ctx, p, pause)
	if err = errors.Join(err, ch.Close(ctx)); err != nil {
		return d, err
	}
	return arrivals(sent, consumers)
}

// arrivals returns how long the frames of a closed channel took. sent has the times at which the producer sent the frames.
func arrivals(sent []time.Duration, consumers []consumer) (d Durations, err error) {
	for _, c := range consumers {
		stamps, err := c.stamps()
		if err != nil {
			return d, err
		}
		if err := d.arrived(sent, stamps); err != nil {
			return d, err
		}
	}
	return d, nil
}

// arrived adds the measurements of one consumer. sent has the times at which the producer sent the frames, and came has
// the times at which the frames arrived.
func (d *Durations) arrived(sent, came []time.Duration) error {
	if len(came) != len(sent) {
		return fmt.Errorf("%d frames were sent, and %d came", len(sent), len(came))
	}
	for i := warm(len(sent)); i < len(sent); i++ {
		d.Each = append(d.Each, came[i]-sent[i])
	}
	d.Elapsed, d.Count = max(d.Elapsed, came[len(came)-1]-sent[0]), len(sent)
	return nil
}

// warm returns how many frames at the beginning of n frames are not measured.
func warm(n int) int { return min(n/4, warmUpRounds) }

// mostFrames returns the greatest number of frames that sendFrames sends with this pause.
func (s *scene) mostFrames(pause time.Duration) int {
	if pause > 0 {
		return mostPaced
	}
	return 1 << 20
}

// sendFrames sends frames for the time s.Time, but at most as many frames as mostFrames returns. It returns, for each frame, the time just
// before sendFrames published the frame.
func (s *scene) sendFrames(ctx context.Context, p *bridge.Publisher, pause time.Duration) (sent []time.Duration, err error) {
	most := s.mostFrames(pause)
	sent = make([]time.Duration, 0, most)
	for begun := time.Now(); len(sent) < most && (len(sent) < leastSamples || time.Since(begun) < s.Time); {
		waitFor(pause)
		sent = append(sent, 0)
		if err := sendFrame(ctx, p, uint64(len(sent)), &sent[len(sent)-1]); err != nil {
			return nil, err
		}
	}
	return sent, nil
}

// waitFor waits as long as `pause` says. With 4 CPUs or more, waitFor spins and does not sleep.
func waitFor(pause time.Duration) {
	if runtime.NumCPU() < 4 {
		time.Sleep(pause)
		return
	}
	for until := now() + pause; now() < until; { // no yield, because yielding moves the goroutine from CPU to CPU
	}
}

// sendFrame sends a frame that contains its number. If at is not nil, sendFrame stores the time just before it publishes the frame.
func sendFrame(ctx context.Context, p *bridge.Publisher, number uint64, at *time.Duration) error {
	b, err := p.Loan(ctx)
	if err != nil {
		return err
	}
	if err := stampNumber(ctx, b, number); err != nil {
		return errors.Join(err, b.Release(true))
	}
	if at != nil {
		*at = now()
	}
	return publish(ctx, p, b)
}
