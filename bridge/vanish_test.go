package bridge

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// For each exchange in the table, a client sends requests, and closes its connection before it has read all replies. Another client does not
// notice this, and no session, lease, buffer or name of the client is left.
func TestAClientMayVanishInTheMiddleOfAnyExchange(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	witness := dial(t, r.path)
	p := createPool(t, witness, hostPool("p", 1<<20))
	kept := allocate(t, p, 10)
	publish(t, kept, "there")
	scalar := wire.Tensor{DType: "uint8"}
	exchanges := map[string][]wire.Request{
		"hello":             {},
		"create":            {&wire.Create{Name: "again", Kind: "host", MaxBytes: 4096}, &wire.Destroy{Pool: 2}},
		"open":              {&wire.Open{Name: "p"}},
		"open, waiting":     {&wire.Open{Name: "q", Wait: longWait}},
		"alloc":             {&wire.Alloc{Pool: 1, Tensor: scalar}},
		"alloc, many":       {&wire.Alloc{Pool: 1, Tensor: scalar}, &wire.Alloc{Pool: 1, Tensor: scalar}, &wire.Alloc{Pool: 1, Tensor: scalar}},
		"alloc, waiting":    {&wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{1 << 20}}, Wait: longWait}},
		"get":               {&wire.Get{Name: "there"}},
		"get, waiting":      {&wire.Get{Name: "there", Write: true, Wait: longWait}},
		"get of no name":    {&wire.Get{Name: "not there", Wait: longWait}},
		"lease":             {&wire.LeaseBuffer{Buffer: kept.Grant().Buffer, Generation: kept.Grant().Generation}},
		"trim":              {&wire.Trim{Pool: 1}},
		"dropped":           {&wire.Get{Name: "there"}, &wire.Dropped{Blocks: []uint64{1, 2, 3}}},
		"cancel":            {&wire.Get{Name: "not there", Wait: longWait}, &wire.Cancel{Request: 2}},
		"unpublish":         {&wire.Unpublish{Name: "not there"}},
		"destroy something": {&wire.Destroy{Pool: 99}},
		"stats":             {&wire.StatsRequest{}},
	}
	for name, requests := range exchanges {
		for _, hello := range []bool{true, false} {
			c := dialRaw(t, r.path)
			if hello {
				c.Ask(1, &wire.Hello{Versions: []uint64{1}}, &wire.HelloReply{})
			} else {
				c.Send(1, &wire.Hello{Versions: []uint64{1}}) // the client sends all requests and reads no reply
			}
			for i, m := range requests {
				c.Send(uint32(i+2), m)
			}
			require.NoError(t, c.Conn.Close(), name)
		}
	}
	require.NoError(t, greeted(t, r.path).Conn.Close()) // when this session is open, the server has accepted all earlier connections
	for r.sessions() != 1 {
		_, err := witness.Stats(t.Context())
		require.NoError(t, err)
	}
	st, err := witness.Stats(t.Context())
	require.NoError(t, err)
	assert.Equal(t, []int{1, 1, 1, 1}, []int{st.Sessions, st.Leases, st.Buffers, st.Names})
	for _, p := range st.Pools {
		assert.Equal(t, p.Reserved, p.Leased+p.Cached+p.Held)
	}
	require.NoError(t, kept.Release(false))
}
