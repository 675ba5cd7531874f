package shmchannel

import (
	"context"
	"sync"
	"testing"
	"time"
)

const benchSpin = 100 * time.Microsecond

// produce publishes n frames as fast as it gets blocks.
func produce(p *testProducer, n int) {
	for range n {
		p.mustPublish()
	}
}

// mustPublish publishes without the costs of a test's helpers.
func (p *testProducer) mustPublish() {
	for len(p.free) == 0 {
		back, err := p.AwaitReclaim(context.Background())
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

func benchBroadcast(b *testing.B, consumers, capacity int, spin time.Duration) {
	r := newRig(b, Spec{Capacity: capacity})
	r.spin = spin
	p := r.producer(2 * capacity)
	var all sync.WaitGroup
	for range consumers {
		c := r.consumer(MemberSpec{})
		all.Go(func() {
			var f Frame
			for range b.N {
				if err := c.Take(context.Background(), &f); err != nil {
					panic(err)
				}
				if err := c.Release(&f, Ticket{}); err != nil {
					panic(err)
				}
			}
		})
	}
	b.ReportAllocs()
	b.ResetTimer()
	produce(p, b.N)
	all.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "frames/s")
}

func BenchmarkBroadcastToOneGoroutine(b *testing.B)    { benchBroadcast(b, 1, 64, benchSpin) }
func BenchmarkBroadcastToOneAsleep(b *testing.B)       { benchBroadcast(b, 1, 64, 0) }
func BenchmarkBroadcastToEightGoroutines(b *testing.B) { benchBroadcast(b, 8, 64, benchSpin) }

// The work alone: nobody waits for anybody.
func BenchmarkPublishTakeRelease(b *testing.B) {
	for name, spec := range map[string]Spec{"broadcast": {Capacity: 64}, "queue": {Mode: Queue, Capacity: 64}} {
		b.Run(name, func(b *testing.B) {
			r := newRig(b, spec)
			p, c := r.producer(128), r.consumer(MemberSpec{})
			var f Frame
			b.ReportAllocs()
			for b.Loop() {
				p.mustPublish()
				if ok, err := c.TryTake(&f); !ok || err != nil {
					b.Fatal(ok, err)
				}
				if spec.Mode == Queue {
					_ = c.Acknowledge(&f)
				}
				if err := c.Release(&f, Ticket{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
