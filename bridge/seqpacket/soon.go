package seqpacket

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/internal/spin"
)

// wait says how a goroutine waits for a packet.
type wait int

const (
	never wait = iota
	asleep
	spinning // and then asleep
)

const (
	// soon is how long a goroutine spins for a packet. An idle service answers sooner, and a client that asks again and again asks sooner.
	soon = 30 * time.Microsecond
	// triesInTurn is how many times a goroutine that spins tries to receive a packet before it lets other goroutines run.
	triesInTurn = 16
)

// read receives a packet into a buffer of c.in.buffers. It returns the error of the poller. The caller holds c.receiving.
func (c *Conn) read(how wait) error {
	if how != asleep {
		c.in.once = true
		err := c.raw.Read(c.in.attemptInto)
		if how == spinning && c.nothingCame(err) {
			err = c.spin()
		}
		c.in.once = false
		if how == never || !c.nothingCame(err) {
			return err
		}
	}
	return c.raw.Read(c.in.attemptInto)
}

// spin tries to receive a packet for a short time. It returns at once if recent calls were in vain, or if enough other waiters of the process
// spin.
func (c *Conn) spin() (err error) {
	if !c.in.spinner.Worth() || !spin.Begin() {
		return nil
	}
	begun := time.Now()
	for tries := 1; c.nothingCame(err) && time.Since(begun) < soon; tries++ {
		if tries%triesInTurn == 0 {
			runtime.Gosched()
		}
		err = c.raw.Read(c.in.attemptInto)
	}
	spin.End()
	c.in.spinner.Learn(!c.nothingCame(err))
	return err
}

// nothingCame reports whether the last attempt to receive found no packet.
func (c *Conn) nothingCame(err error) bool { return err == nil && c.in.errno == unix.EAGAIN }
