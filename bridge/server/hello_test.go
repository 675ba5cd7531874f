package server

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
)

func TestAClientThatSaysNothingIsCutOff(t *testing.T) {
	l := unhurried
	l.Hello = time.Millisecond
	r := start(t, Config{}, l)
	err := dialRaw(t, r.path).Last()
	assert.ErrorIs(t, err, wire.CodeProtocol)
	assert.ErrorContains(t, err, "no hello came within 1ms")
}

func TestTheHelloEndsItsTimeLimit(t *testing.T) {
	l := unhurried
	for l.Hello = 20 * time.Millisecond; ; l.Hello *= 2 { // try longer limits until the hello comes in time
		c := dialRaw(t, start(t, Config{}, l).path)
		packet, err := wire.AppendRequest(nil, 1, &wire.Hello{Versions: []uint64{1}})
		require.NoError(t, err)
		if c.Conn.Send(packet, nil) != nil || c.Reply(1, &wire.HelloReply{}) != nil {
			continue
		}
		<-time.After(l.Hello)
		c.Ask(2, &wire.StatsRequest{}, &wire.StatsReply{})
		return
	}
}

func TestNothingGoesBeforeHello(t *testing.T) {
	_, path := serve(t, Config{})
	for _, m := range []wire.Request{&wire.StatsRequest{}, &wire.Release{Lease: 1}, &wire.Cancel{Request: 1}, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1}} {
		c := dialRaw(t, path)
		c.Send(7, m)
		assert.ErrorIs(t, c.Reply(7, &wire.EmptyReply{}), wire.CodeProtocol)
		assert.Empty(t, c.CutOff())

		c = dialRaw(t, path)
		c.Send(0, m)
		assert.ErrorIs(t, c.Last(), wire.CodeProtocol)
	}
}

func TestAHelloWithoutANumberCannotBeAnswered(t *testing.T) {
	_, path := serve(t, Config{})
	c := dialRaw(t, path)
	c.Send(0, &wire.Hello{Versions: []uint64{1}})
	err := c.Last()
	assert.ErrorIs(t, err, wire.CodeProtocol)
	assert.ErrorContains(t, err, "numbered hello")
}

func TestAVersionThatTheServiceDoesNotSpeakIsRefused(t *testing.T) {
	_, path := serve(t, Config{})
	for _, versions := range [][]uint64{{2}, {}, {0, 1 << 62}} {
		c := dialRaw(t, path)
		c.Send(1, &wire.Hello{Versions: versions})
		err := c.Reply(1, &wire.HelloReply{})
		assert.ErrorIs(t, err, wire.CodeVersion)
		assert.ErrorContains(t, err, "the service is poolsvc "+program.Version()+" and speaks version 1 of the protocol")
		assert.Empty(t, c.CutOff())
	}
	c := dialRaw(t, path)
	c.Ask(1, &wire.Hello{Versions: []uint64{7, 1}, Features: []string{"levitation"}}, &wire.HelloReply{})
}

func TestASecondHelloEndsTheSession(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	c.Refused(2, &wire.Hello{Versions: []uint64{1}}, wire.CodeProtocol)
	assert.Empty(t, c.CutOff())

	c = greeted(t, path)
	c.Send(0, &wire.Hello{Versions: []uint64{1}})
	assert.ErrorIs(t, c.Last(), wire.CodeProtocol)
}
