package main

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// gate is a writer that blocks until it is opened. Then it fails with err, or writes.
type gate struct {
	bytes.Buffer
	open  chan struct{}
	tried chan struct{} // gets a value at each Write
	err   error
}

func newGate() *gate { return &gate{open: make(chan struct{}), tried: make(chan struct{}, 1000)} }

func (g *gate) Write(p []byte) (int, error) {
	g.tried <- struct{}{}
	<-g.open
	if g.err != nil {
		return 0, g.err
	}
	return g.Buffer.Write(p)
}

func leftOut(n int) []byte { return fmt.Appendf(nil, "%d left out\n", n) }

func say(t *testing.T, r *relay, text string) {
	t.Helper()
	n, err := r.Write([]byte(text))
	require.NoError(t, err)
	require.Equal(t, len(text), n)
}

func TestNobodyWaitsForABlockedLogWhichSaysWhereLinesAreMissing(t *testing.T) {
	to, said := newGate(), make(chan error, 10)
	r := (&relay{to: to, most: 30, missing: leftOut, impaired: func(err error) { said <- err }}).start()
	for i := range 8 { // each has ten bytes
		say(t, r, fmt.Sprintf("line %04d\n", i))
	}
	require.ErrorIs(t, <-said, errNobodyReads)
	<-to.tried
	close(to.open)
	require.True(t, r.close(), "everything is written in the end")
	assert.Equal(t, "line 0000\nline 0001\nline 0002\n5 left out\n", to.String())
	assert.Empty(t, said, "it is said once")
}

func TestALogWithoutAReaderIsSaidOnceAndAgainWhenItFailsLater(t *testing.T) {
	to, said := newGate(), make(chan error, 10)
	close(to.open)
	r := (&relay{to: to, most: 100, missing: leftOut, impaired: func(err error) { said <- err }}).start()
	to.err = unix.EPIPE
	for range 3 {
		say(t, r, "lost\n")
		<-to.tried
	}
	require.ErrorIs(t, <-said, unix.EPIPE)
	awaitLeft(r, 3)
	assert.Empty(t, said)
	to.err = nil
	say(t, r, "back\n")
	<-to.tried
	awaitLeft(r, 0)
	to.err = unix.ENOSPC
	say(t, r, "lost\n")
	require.ErrorIs(t, <-said, unix.ENOSPC)
	require.True(t, r.close())
	assert.Equal(t, "3 left out\nback\n", to.String())
}

// awaitLeft waits until all texts are written or n texts are left out.
func awaitLeft(r *relay, n int) {
	for done := false; !done; runtime.Gosched() {
		r.mu.Lock()
		done = r.bytes == 0 && r.left == n
		r.mu.Unlock()
	}
}

func TestTheEndDoesNotWaitForABlockedLog(t *testing.T) {
	to := newGate()
	r := (&relay{to: to, most: 100, missing: leftOut}).start()
	say(t, r, "never written\n")
	assert.False(t, r.close())
	close(to.open)
	<-r.done
}
