package wire_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

// vector is an entry of docs/vectors/v1.json.
type vector struct {
	Name, Direction, Type, Why string
	Packet                     hexBytes
	Message                    map[string]any
}

type hexBytes []byte

func (b *hexBytes) UnmarshalText(text []byte) (err error) {
	*b, err = hex.DecodeString(string(text))
	return err
}

type vectors struct{ Valid, Accepted, Invalid []vector }

func readVectors(t testing.TB) (v vectors) {
	t.Helper()
	text, err := os.ReadFile("../../docs/vectors/v1.json")
	require.NoError(t, err)
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	require.NoError(t, d.Decode(&v))
	require.NotEmpty(t, v.Valid)
	return v
}

// recode decodes a packet and returns the same message encoded again.
func recode(v vector) ([]byte, error) {
	switch v.Direction {
	case "request":
		q, r, err := wire.DecodeRequest(v.Packet)
		if err != nil {
			return nil, err
		}
		return wire.AppendRequest(nil, q, r)
	case "notice":
		n, err := wire.DecodeNotice(v.Packet)
		if err != nil {
			return nil, err
		}
		return wire.AppendNotice(nil, n)
	}
	r := replyTo(v.Type)
	q, err := wire.DecodeReply(v.Packet, r)
	if failure, ok := errors.AsType[*wire.Error](err); ok {
		return wire.AppendError(nil, q, failure)
	}
	if err != nil {
		return nil, err
	}
	return wire.AppendReply(nil, q, r)
}

func replyTo(op string) wire.Reply {
	switch op {
	case "hello":
		return new(wire.HelloReply)
	case "create", "open":
		return new(wire.PoolReply)
	case "alloc", "get", "lease":
		return new(wire.LeaseReply)
	case "trim":
		return new(wire.TrimReply)
	case "stats":
		return new(wire.StatsReply)
	case "list":
		return new(wire.ListReply)
	case "timeline":
		return new(wire.TimelineReply)
	case "channel", "find":
		return new(wire.ChannelReply)
	case "join":
		return new(wire.JoinReply)
	case "map":
		return new(wire.MapReply)
	}
	return new(wire.EmptyReply)
}

// plain decodes a packet with the library alone, into what the JSON of the vectors looks like.
func plain(t *testing.T, packet []byte) any {
	var v any
	require.NoError(t, msgpack.Unmarshal(packet, &v))
	return v
}

// sameMessage compares what the library decoded with the JSON of a message.
func sameMessage(t *testing.T, want, got any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		if b, ok := want["$bin"]; ok {
			require.Equal(t, b, hex.EncodeToString(got.([]byte)))
			return
		}
		require.Len(t, got, len(want))
		for k, v := range want {
			require.Contains(t, got, k)
			sameMessage(t, v, got.(map[string]any)[k])
		}
	case []any:
		require.Len(t, got, len(want))
		for i, v := range want {
			sameMessage(t, v, got.([]any)[i])
		}
	case json.Number:
		text, err := json.Marshal(got)
		require.NoError(t, err)
		require.Equal(t, want.String(), string(text))
	default:
		require.Equal(t, want, got)
	}
}

func TestValidVectorsSurviveDecodingAndEncoding(t *testing.T) {
	for _, v := range readVectors(t).Valid {
		t.Run(v.Name, func(t *testing.T) {
			sameMessage(t, v.Message, plain(t, v.Packet))
			got, err := recode(v)
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(v.Packet), hex.EncodeToString(got))
		})
	}
}

func TestAcceptedVectorsDecodeToTheirMessage(t *testing.T) {
	for _, v := range readVectors(t).Accepted {
		t.Run(v.Name, func(t *testing.T) {
			got, err := recode(v)
			require.NoError(t, err)
			sameMessage(t, v.Message, plain(t, got))
		})
	}
}

func TestInvalidVectorsAreRefused(t *testing.T) {
	for _, v := range readVectors(t).Invalid {
		t.Run(v.Name, func(t *testing.T) {
			got, err := recode(v)
			require.ErrorIs(t, err, wire.ErrProtocol, v.Why)
			require.Nil(t, got)
			_, isAnswer := errors.AsType[*wire.Error](err)
			require.False(t, isAnswer, "a malformed packet must not look like the service's answer")
		})
	}
}

func TestEveryMessageHasAVectorWithAllItsFields(t *testing.T) {
	byName := map[string]vector{}
	for _, v := range readVectors(t).Valid {
		byName[v.Direction+" "+v.Name] = v
	}
	for _, c := range literals {
		t.Run(c.vector, func(t *testing.T) {
			v, ok := byName[c.direction+" "+c.vector]
			require.True(t, ok)
			var got []byte
			var err error
			switch m := c.message.(type) {
			case wire.Request:
				got, err = wire.AppendRequest(nil, c.q, m)
			case wire.Notice:
				got, err = wire.AppendNotice(nil, m)
			case wire.Reply:
				got, err = wire.AppendReply(nil, c.q, m)
			case *wire.Error:
				got, err = wire.AppendError(nil, c.q, m)
			}
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(v.Packet), hex.EncodeToString(got))
		})
	}
}
