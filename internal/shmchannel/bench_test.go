package shmchannel

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// benchSpin is how long the members spin before they sleep, in benchmarks with spinning.
const benchSpin = 100 * time.Microsecond

// mustPublish publishes a frame without the cost of the test helpers.
func (p *testProducer) mustPublish() {
	for len(p.free) == 0 {
		back, err := awaitReclaim(context.Background(), p)
		if err != nil {
			panic(err)
		}
		for _, b := range back {
			p.free = append(p.free, b.Block)
		}
	}
	p.record.Block = p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	if _, err := p.Publish(context.Background(), &p.record); err != nil {
		panic(err)
	}
}

// drain takes frames until the channel has ended.
func drain(c *Consumer) error {
	var f Frame
	for {
		err := c.Take(context.Background(), &f)
		if errors.Is(err, ErrEnded) {
			return nil
		}
		if err == nil && c.mode == Queue {
			err = c.Acknowledge(&f)
		}
		if err == nil {
			err = c.Release(&f, Fence{})
		}
		if err != nil {
			return err
		}
	}
}

// processor returns the CPU time that this process and its ended children have used.
func processor(b *testing.B) (total time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		require.NoError(b, unix.Getrusage(who, &u))
		total += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return total
}

// report reports the number of frames per second, and the CPU time that all CPUs together need for one frame. Other work on the machine
// changes the number of frames per second, but not the CPU time.
func report(b *testing.B, before time.Duration) {
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
	b.ReportMetric(float64(processor(b)-before)/float64(b.N), "cpu-ns/frame")
}

// One goroutine publishes, takes and releases every frame, so no goroutine waits for another.
func BenchmarkPublishTakeRelease(b *testing.B) {
	for _, mode := range []Mode{Broadcast, Queue} {
		b.Run(mode.String(), func(b *testing.B) {
			r := newRig(b, Spec{Mode: mode, Capacity: 64})
			p, c := r.producer(128), r.consumer(MemberSpec{})
			var f Frame
			b.ReportAllocs()
			before := processor(b)
			for b.Loop() {
				p.mustPublish()
				if ok, err := c.TryTake(&f); !ok || err != nil {
					b.Fatal(ok, err)
				}
				if mode == Queue {
					_ = c.Acknowledge(&f)
				}
				if err := c.Release(&f, Fence{}); err != nil {
					b.Fatal(err)
				}
			}
			report(b, before)
		})
	}
}

type benchmark struct {
	mode      Mode
	consumers int
	spin      time.Duration
}

func (c benchmark) String() string {
	how := "asleep"
	if c.spin > 0 {
		how = "spinning"
	}
	return fmt.Sprintf("%v/%d consumers/%s", c.mode, c.consumers, how)
}

var benchmarks = []benchmark{
	{Broadcast, 1, benchSpin}, {Broadcast, 1, 0}, {Broadcast, 8, benchSpin}, {Broadcast, 8, 0}, {Queue, 4, benchSpin}, {Queue, 4, 0},
}

const benchCapacity = 64

// All members run in one process.
func BenchmarkGoroutines(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.String(), func(b *testing.B) {
			r := newRig(b, Spec{Mode: c.mode, Capacity: benchCapacity})
			r.spin = c.spin
			p := r.producer(2 * benchCapacity)
			var all sync.WaitGroup
			for range c.consumers {
				consumer := r.consumer(MemberSpec{})
				all.Go(func() {
					if err := drain(consumer.Consumer); err != nil {
						panic(err)
					}
				})
			}
			b.ReportAllocs()
			before := processor(b)
			b.ResetTimer()
			for range b.N {
				p.mustPublish()
			}
			require.NoError(b, r.host.Close())
			all.Wait()
			report(b, before)
		})
	}
}

// Each consumer runs in its own process.
func BenchmarkProcesses(b *testing.B) {
	for _, c := range benchmarks {
		b.Run(c.String(), func(b *testing.B) {
			members := []MemberSpec{{Role: ProducerRole}}
			for range c.consumers {
				members = append(members, MemberSpec{Role: ConsumerRole})
			}
			f := newFamily(b, Spec{Mode: c.mode, Capacity: benchCapacity}, members...)
			m := f.members[0]
			producer, err := OpenProducer(MemberConfig{Roster: f.host.RosterFile(), Sequencer: f.host.SequencerFile(), Own: m.File(),
				ID: m.ID, Spin: c.spin})
			require.NoError(b, err)
			p := &testProducer{Producer: producer, t: b, record: Record{Description: bytes64, Bytes: blockBytes}}
			for i := range uint64(2 * benchCapacity) {
				p.free = append(p.free, i+1)
			}
			var processes []*process
			for _, m := range f.members[1:] {
				require.NoError(b, p.AddCursor(m.Seat, m.ID, m.File()))
				processes = append(processes, f.start(m, job{Drain: true, Spin: c.spin}))
			}
			require.NoError(b, f.host.Join(m))
			before := processor(b)
			b.ResetTimer()
			for range b.N {
				p.mustPublish()
			}
			require.NoError(b, f.host.Close())
			for _, c := range processes {
				c.wait()
			}
			report(b, before)
			require.NoError(b, producer.Close())
		})
	}
}
