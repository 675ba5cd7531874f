package wire_test

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
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

type vectors struct {
	Valid, Accepted, Invalid []vector
	Layouts                  []layoutVector
}

// layoutVector is the layout of a buffer.
type layoutVector struct {
	Name     string
	Layout   hexBytes
	Metadata map[string]string
	Arrays   []map[string]any
}

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

// replyTo makes an empty reply for the operation op.
func replyTo(op string) wire.Reply {
	if blank, ok := wire.NewRequest[op]; ok {
		return blank().Reply()
	}
	return new(wire.EmptyReply)
}

// plain decodes a packet with only the library, into the form that the vectors have in JSON.
func plain(t *testing.T, packet []byte) any {
	var v any
	require.NoError(t, msgpack.Unmarshal(packet, &v))
	return v
}

// sameMessage compares a message that the library decoded with the JSON of the message.
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

func TestLayoutsOfBuffersHaveTheirBytes(t *testing.T) {
	for _, v := range readVectors(t).Layouts {
		t.Run(v.Name, func(t *testing.T) {
			metadata, arrays, err := wire.DecodeBufferLayout(v.Layout)
			require.NoError(t, err)
			require.Equal(t, v.Metadata, metadata)
			layout, err := wire.AppendLayout(nil, &wire.Layout{Arrays: arrays})
			require.NoError(t, err)
			var want []any
			for _, one := range v.Arrays {
				want = append(want, one)
			}
			sameMessage(t, want, plain(t, layout).(map[string]any)["ar"])
			again, err := wire.AppendBufferLayout(nil, metadata, arrays)
			require.NoError(t, err)
			require.Equal(t, hex.EncodeToString(v.Layout), hex.EncodeToString(again))
		})
	}
}

func TestMetadataThatIsNotInTheFirstPartsOfALayoutIsIgnored(t *testing.T) {
	var layout []byte
	array := []wire.NamedTensor{{Name: "x", Tensor: wire.Tensor{DType: "uint8"}}}
	for _, l := range []wire.Layout{
		{Metadata: []wire.MetadataEntry{{"first", "v"}}}, {Metadata: []wire.MetadataEntry{{"first", "w"}}},
		{Metadata: []wire.MetadataEntry{{"k", "v"}}, Arrays: array}, {Metadata: []wire.MetadataEntry{{"last", "v"}}},
	} {
		part, err := wire.AppendLayout(nil, &l)
		require.NoError(t, err)
		layout = append(binary.LittleEndian.AppendUint32(layout, uint32(len(part))), part...)
	}
	metadata, arrays, err := wire.DecodeBufferLayout(layout)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"first": "vw"}, metadata)
	require.Equal(t, array, arrays)
}

func TestLongMetadataIsCutBetweenItsCharacters(t *testing.T) {
	for _, text := range []string{"a", "ä", "€", "😀"} {
		for more := range 5 {
			metadata := map[string]string{"a": "", "k": strings.Repeat("b", more) + strings.Repeat(text, 5000), "l": text}
			layout, err := wire.AppendBufferLayout(nil, metadata, []wire.NamedTensor{{Name: "x", Tensor: wire.Tensor{DType: "uint8"}}})
			require.NoError(t, err)
			found, _, err := wire.DecodeBufferLayout(layout)
			require.NoError(t, err)
			require.Equal(t, metadata, found)
		}
	}
	for _, wrong := range []map[string]string{{"k": strings.Repeat("\x80", 5000)}, {"\xff": ""}, {strings.Repeat("k", 4097): ""}} {
		_, err := wire.AppendBufferLayout(nil, wrong, nil)
		require.ErrorIs(t, err, wire.CodeInvalid)
	}
	_, err := wire.AppendBufferLayout(nil, map[string]string{"k": strings.Repeat("v", wire.MaxLayoutBytes)}, nil)
	require.ErrorContains(t, err, "layout: expected at most 33554432 bytes, found ")
}

func TestEveryFieldOfEveryMessageStandsInAVector(t *testing.T) {
	seen := map[string]bool{}
	for _, v := range readVectors(t).Valid {
		m, err := decoded(v)
		require.NoError(t, err, v.Name)
		visit(reflect.ValueOf(m), func(field string, v reflect.Value) { seen[field] = seen[field] || !v.IsZero() })
		seen[reflect.TypeOf(m).Elem().Name()] = true
	}
	messages := []any{new(wire.Error)}
	for _, blank := range wire.NewRequest {
		messages = append(messages, blank(), blank().Reply())
	}
	for _, blank := range wire.NewNotice {
		messages = append(messages, blank())
	}
	for _, m := range messages {
		assert.True(t, seen[reflect.TypeOf(m).Elem().Name()], "no vector is a %T", m)
		visit(whole(reflect.TypeOf(m)), func(field string, _ reflect.Value) {
			assert.True(t, seen[field], "no vector has a value of %s", field)
		})
	}
}

// decoded returns the message of a valid vector, or the error that the vector's packet carries.
func decoded(v vector) (m any, err error) {
	switch v.Direction {
	case "request":
		_, m, err = wire.DecodeRequest(v.Packet)
	case "notice":
		m, err = wire.DecodeNotice(v.Packet)
	default:
		r := replyTo(v.Type)
		if _, err = wire.DecodeReply(v.Packet, r); err == nil {
			return r, nil
		}
		if failure, ok := errors.AsType[*wire.Error](err); ok {
			return failure, nil
		}
	}
	return m, err
}

// visit calls the function named for every field of a message, and for every field of the structures in the message.
func visit(v reflect.Value, named func(field string, v reflect.Value)) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			visit(v.Elem(), named)
		}
	case reflect.Slice:
		for i := range v.Len() {
			visit(v.Index(i), named)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			named(v.Type().String()+"."+v.Type().Field(i).Name, v.Field(i))
			visit(v.Field(i), named)
		}
	default: // a value without fields
	}
}

// whole makes a value of the type t that contains every structure that a value of t can contain.
func whole(t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch t.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(t.Elem()))
		v.Elem().Set(whole(t.Elem()))
	case reflect.Slice:
		v.Set(reflect.Append(v, whole(t.Elem())))
	case reflect.Struct:
		for i := range t.NumField() {
			v.Field(i).Set(whole(t.Field(i).Type))
		}
	default: // a type without structures
	}
	return v
}
