package server

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/program"
	"github.com/poolbridge/poolbridge/internal/ration"
)

// vector is a packet of docs/vectors/v1.json.
type vector struct{ Name, Direction, Packet string }

func vectors(t *testing.T) (valid, invalid []vector) {
	t.Helper()
	text, err := os.ReadFile("../../docs/vectors/v1.json")
	require.NoError(t, err)
	var all struct{ Valid, Invalid []vector }
	require.NoError(t, json.Unmarshal(text, &all))
	require.NotEmpty(t, all.Invalid)
	return all.Valid, all.Invalid
}

func (v vector) packet(t *testing.T) []byte {
	t.Helper()
	b, err := hex.DecodeString(v.Packet)
	require.NoError(t, err)
	return b
}

// The service answers a malformed packet with the error code `protocol` and closes the connection of that client. Other clients do not
// notice this. A packet that only the service may send is malformed, too.
func TestEveryInvalidVectorEndsTheSessionThatSendsIt(t *testing.T) {
	r := start(t, Config{}, unhurried)
	witness := greeted(t, r.path)
	_, invalid := vectors(t)
	for _, v := range invalid {
		packet := v.packet(t)
		if len(packet) == 0 || len(packet) > wire.MaxPacket+1 {
			continue // the socket cannot carry this packet, or the next test sends it
		}
		if _, _, err := wire.DecodeRequest(packet); !errors.Is(err, wire.ErrProtocol) {
			require.NotEqual(t, "request", v.Direction)
			continue // the packet is malformed as a reply, but valid as a request
		}
		for when, connect := range map[string]func() *raw{
			"before hello": func() *raw { return dialRaw(t, r.path) },
			"after hello":  func() *raw { return greeted(t, r.path) },
		} {
			c := connect()
			require.NoError(t, c.Conn.Send(packet, nil), v.Name)
			assert.ErrorIs(t, c.Last(), wire.CodeProtocol, "%s, %s", v.Name, when)
			require.NoError(t, c.Conn.Close())
		}
	}
	witness.Ask(2, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestAPacketLongerThanAnyIsAProtocolError(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	require.NoError(t, c.Conn.Send(make([]byte, wire.MaxPacket+1), nil))
	err := c.Last()
	assert.ErrorIs(t, err, wire.CodeProtocol)
	assert.ErrorContains(t, err, "longer than the buffer")
}

// A well-formed request gets an answer even if the request makes no sense, and the session stays open.
func TestEveryValidRequestIsAnswered(t *testing.T) {
	r := start(t, Config{}, unhurried)
	c := greeted(t, r.path)
	valid, _ := vectors(t)
	for _, v := range valid {
		if v.Direction != "request" {
			continue
		}
		q, m, err := wire.DecodeRequest(v.packet(t))
		require.NoError(t, err)
		if _, greets := m.(*wire.Hello); greets {
			continue // a client sends hello only once
		}
		require.NoError(t, c.Conn.Send(v.packet(t), nil), v.Name)
		if q != 0 {
			c.Send(0, &wire.Cancel{Request: uint64(q)})
			_ = c.Reply(q, m.Reply())
		}
	}
	c.Ask(9, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestAnUnknownOperationIsUnsupportedAndTheSessionLivesOn(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	packet := []byte("\x82\xa1o\xa4warp\xa1q\x05")
	require.NoError(t, c.Conn.Send(packet, nil))
	err := c.Reply(5, &wire.EmptyReply{})
	assert.ErrorIs(t, err, wire.CodeUnsupported)
	assert.ErrorContains(t, err, "the service is poolsvc "+program.Version()+` and does not know the operation "warp"`)
	require.NoError(t, c.Conn.Send([]byte("\x81\xa1o\xa4warp"), nil), "and no answer wanted")
	c.Ask(6, &wire.StatsRequest{}, &wire.StatsReply{})
}

func TestOfSeveralLeasesAllAreEndedThatCanBe(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
	leases := func() wire.Count {
		var s wire.StatsReply
		c.Ask(3, &wire.StatsRequest{}, &s)
		return s.Stats.Leases
	}
	var ids []uint64
	for range 4 {
		var l wire.GrantReply
		c.Ask(4, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{8}}}, &l)
		ids = append(ids, l.Grant.ID)
	}
	assert.EqualValues(t, 4, leases())
	c.Refused(5, &wire.Release{Lease: ids[0], Also: []uint64{99, ids[1], ids[1]}}, wire.CodeReleased)
	assert.EqualValues(t, 2, leases())
	c.Refused(6, &wire.Release{Lease: 99, Also: ids[2:]}, wire.CodeReleased)
	assert.Zero(t, leases())
}

func TestAClientThatDescribesItsLeaseDifferentlyIsCutOff(t *testing.T) {
	for name, change := range map[string]func(*wire.Grant){
		"not at all":  func(*wire.Grant) {},
		"dtype":       func(l *wire.Grant) { l.Tensor.DType = "int8" },
		"shape":       func(l *wire.Grant) { l.Tensor.Shape = []uint64{2, 4} },
		"strides":     func(l *wire.Grant) { l.Tensor.Strides = []int64{-1} },
		"offset":      func(l *wire.Grant) { l.Tensor.Offset = 1 },
		"bytes":       func(l *wire.Grant) { l.Bytes++ },
		"buffer":      func(l *wire.Grant) { l.Buffer++ },
		"generation":  func(l *wire.Grant) { l.Generation++ },
		"block":       func(l *wire.Grant) { l.Block++ },
		"block bytes": func(l *wire.Grant) { l.BlockBytes++ },
		"pool":        func(l *wire.Grant) { l.Pool++ },
		"read-only":   func(l *wire.Grant) { l.Write = false },
	} {
		t.Run(name, func(t *testing.T) {
			_, path := serve(t, Config{})
			c := greeted(t, path)
			c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 1 << 20}, &wire.PoolReply{})
			var l wire.GrantReply
			c.Ask(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8)}, &l)
			l.Grant.Export = nil
			change(&l.Grant)
			c.Send(0, &wire.Release{Lease: l.Grant.ID, Seen: &l.Grant})
			if name == "not at all" {
				c.Ask(4, &wire.StatsRequest{}, &wire.StatsReply{})
				return
			}
			e := c.Last()
			assert.Equal(t, wire.CodeProtocol, e.Code)
			assert.Contains(t, e.Message, "the client describes lease 1 as")
		})
	}
}

func TestOneUserCannotFillTheLogWithWrongDescriptions(t *testing.T) {
	r := start(t, Config{}, unhurried)
	const sessions = ration.Burst + 100 // more than the log takes, unless the test lasts for 100 s
	for range sessions {
		c := greeted(t, r.path)
		c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 16 << 20, Ensure: true}, &wire.PoolReply{})
		var l wire.GrantReply
		c.Ask(3, &wire.Alloc{Pool: 1, Tensor: bytesTensor(8)}, &l)
		l.Grant.Export = nil
		l.Grant.Bytes++
		c.Send(0, &wire.Release{Lease: l.Grant.ID, Seen: &l.Grant})
		c.Last()
	}
	assert.Less(t, r.log.Count(`msg="a session ends"`), sessions)
}

func TestArgumentsThatContradictEachOtherAreInvalid(t *testing.T) {
	_, path := serve(t, Config{})
	c := greeted(t, path)
	c.Ask(2, &wire.Create{Name: "p", Kind: "host", MaxBytes: 4096}, &wire.PoolReply{})
	c.Refused(3, &wire.Open{}, wire.CodeInvalid)
	c.Refused(4, &wire.Open{Name: "p", Pool: 1}, wire.CodeInvalid)
	c.Refused(5, &wire.Create{Name: "q", Kind: "host", MaxBytes: 1, UIDs: []uint64{1 << 32}}, wire.CodeInvalid)
	c.Refused(6, &wire.Create{Name: "q", Kind: "tape", MaxBytes: 1}, wire.CodeInvalid)
	c.Refused(7, &wire.Alloc{Pool: 1, Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{1 << 62, 1 << 62}}}, wire.CodeInvalid)
	c.Refused(8, &wire.Alloc{Pool: 99, Tensor: wire.Tensor{DType: "uint8"}}, wire.CodeNotFound)
	c.Refused(9, &wire.Release{Lease: 1}, wire.CodeReleased)
	c.Refused(10, &wire.Destroy{Pool: 99}, wire.CodeNotFound)
	c.Refused(11, &wire.Trim{Pool: 99}, wire.CodeNotFound)
	c.Refused(12, &wire.Publish{Lease: 1, Name: "x"}, wire.CodeReleased)
	c.Ask(13, &wire.Open{Pool: 1}, &wire.PoolReply{})
}
