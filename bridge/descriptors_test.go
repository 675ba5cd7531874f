package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

func TestSessionsLeaveNoDescriptorBehind(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c := dial(t, r.path)
	p := createPool(t, c, hostPool("p", 1<<16))
	publish(t, allocate(t, p, 10), "x")
	before := -1
	for i := range 20 {
		other := dial(t, r.path)
		l, err := other.TryGet(t.Context(), "x", LeaseOptions{})
		require.NoError(t, err)
		require.NoError(t, l.Release(false))
		require.NoError(t, other.Close())
		vanishing := greeted(t, r.path)
		vanishing.Ask(2, &wire.Open{Name: "p"}, &wire.PoolReply{})
		require.NoError(t, vanishing.Conn.Close())
		for r.sessions() != 1 {
			_, err := c.Stats(t.Context())
			require.NoError(t, err)
		}
		if i == 0 {
			before = openFDs(t)
		}
	}
	eventually(t, func() bool { return openFDs(t) <= before }) // the service may still be ending a session
}

func TestAFullTableOfDescriptorsMakesClientsWait(t *testing.T) {
	path := openDir(t) + "/run/s"
	server := spawn(t, "server", path, nil)
	for server.says() != "full" { // with a full table, accepting fails even if no client connects
	}
	connected := make(chan *Client)
	go func() {
		c, err := Dial(t.Context(), path)
		assert.NoError(t, err)
		connected <- c
	}()
	assert.Contains(t, server.says(), "connections have to wait")
	server.tell("make room")
	c := <-connected
	require.NotNil(t, c)
	createPool(t, c, hostPool("p", 4096))
	require.NoError(t, c.Close())
	server.tell("quit")
}

func TestAServiceWithoutDescriptorsSaysWhatToRaise(t *testing.T) {
	path := openDir(t) + "/run/s"
	server := spawn(t, "server", path, nil)
	for server.says() != "full" {
	}
	server.tell("one") // one free descriptor for the connection, and none to watch the client's process
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, ErrLimit)
	assert.ErrorContains(t, err, "LimitNOFILE")
	server.tell("many")
	for server.says() != "has made room" { // skip the server's log, and the same line about the first descriptor
	}
	for server.says() != "has made room" {
	}
	require.NoError(t, dial(t, path).Close())
	server.tell("quit")
}

func TestAClientWithoutDescriptorsSaysWhatToRaise(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	createPool(t, dial(t, r.path), hostPool("p", 1<<16))
	starving := spawn(t, "starve", r.path, nil)
	const cure = "no file descriptor is free: raise the limit RLIMIT_NOFILE"
	assert.Contains(t, starving.says(), cure, "Dial")
	assert.Contains(t, starving.says(), cure, "OpenPool, which receives the pool's descriptor")
	assert.Equal(t, "<nil>", starving.says(), "Allocate in an open pool needs no descriptor")
	assert.Equal(t, "<nil>", starving.says(), "Dial, with free descriptors again")
}
