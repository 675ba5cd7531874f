package bridge

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
	l.hello = time.Millisecond
	r := start(t, ServerConfig{}, l)
	err := dialRaw(t, r.path).last()
	assert.ErrorIs(t, err, wire.CodeProtocol)
	assert.ErrorContains(t, err, "no hello came within 1ms")
}

func TestTheHelloEndsItsTimeLimit(t *testing.T) {
	l := unhurried
	for l.hello = 20 * time.Millisecond; ; l.hello *= 2 { // until the hello comes in time
		c := dialRaw(t, start(t, ServerConfig{}, l).path)
		packet, err := wire.AppendRequest(nil, 1, &wire.Hello{Versions: []uint64{1}})
		require.NoError(t, err)
		if c.conn.Send(packet, nil) != nil || c.reply(1, &wire.HelloReply{}) != nil {
			continue
		}
		<-time.After(l.hello)
		c.ask(2, &wire.StatsRequest{}, &wire.StatsReply{})
		return
	}
}

func TestNothingGoesBeforeHello(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	for _, m := range []wire.Request{&wire.StatsRequest{}, &wire.Release{Lease: 1}, &wire.Cancel{Request: 1}, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1}} {
		c := dialRaw(t, path)
		c.send(7, m)
		assert.ErrorIs(t, c.reply(7, &wire.EmptyReply{}), wire.CodeProtocol)
		assert.Empty(t, c.cutOff())

		c = dialRaw(t, path)
		c.send(0, m)
		assert.ErrorIs(t, c.last(), wire.CodeProtocol)
	}
}

func TestAHelloWithoutANumberCannotBeAnswered(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	c := dialRaw(t, path)
	c.send(0, &wire.Hello{Versions: []uint64{1}})
	err := c.last()
	assert.ErrorIs(t, err, wire.CodeProtocol)
	assert.ErrorContains(t, err, "numbered hello")
}

func TestAVersionThatTheServiceDoesNotSpeakIsRefused(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	for _, versions := range [][]uint64{{2}, {}, {0, 1 << 62}} {
		c := dialRaw(t, path)
		c.send(1, &wire.Hello{Versions: versions})
		err := c.reply(1, &wire.HelloReply{})
		assert.ErrorIs(t, err, wire.CodeVersion)
		assert.ErrorContains(t, err, "the service is poolsvc "+program.Version()+" and speaks version 1 of the protocol")
		assert.Empty(t, c.cutOff())
	}
	c := dialRaw(t, path)
	c.ask(1, &wire.Hello{Versions: []uint64{7, 1}, Features: []string{"levitation"}}, &wire.HelloReply{})
}

func TestASecondHelloEndsTheSession(t *testing.T) {
	_, path := serve(t, ServerConfig{})
	c := greeted(t, path)
	c.refused(2, &wire.Hello{Versions: []uint64{1}}, wire.CodeProtocol)
	assert.Empty(t, c.cutOff())

	c = greeted(t, path)
	c.send(0, &wire.Hello{Versions: []uint64{1}})
	assert.ErrorIs(t, c.last(), wire.CodeProtocol)
}
