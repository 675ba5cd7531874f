package wire_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/wire"
)

// steadyLease is the reply with a lease when the session has mapped the block already, so the reply has no export.
var steadyLease = wire.GrantReply{Grant: wire.Grant{ID: 1 << 20, Buffer: 1 << 21, Generation: 300, Pool: 1, Block: 40,
	BlockBytes: 2 << 20, Bytes: 1843200, Tensor: wire.Tensor{DType: "float32", Shape: []uint64{480, 640, 3}}}}

func BenchmarkCheck(b *testing.B) {
	packet, err := wire.AppendReply(nil, 1, &steadyLease)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		wire.Check(packet)
	}
}

func BenchmarkAppendGet(b *testing.B) {
	buf := make([]byte, 0, 256)
	m := &wire.Get{Name: "camera/0", Wait: 1000}
	b.ReportAllocs()
	for b.Loop() {
		wire.AppendRequest(buf, 7, m)
	}
}

func BenchmarkDecodeGet(b *testing.B) {
	packet, err := wire.AppendRequest(nil, 7, &wire.Get{Name: "camera/0", Wait: 1000})
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		wire.DecodeRequest(packet)
	}
}

func BenchmarkAppendGrantReply(b *testing.B) {
	buf := make([]byte, 0, 256)
	b.ReportAllocs()
	for b.Loop() {
		wire.AppendReply(buf, 7, &steadyLease)
	}
}

func BenchmarkDecodeGrantReply(b *testing.B) {
	packet, err := wire.AppendReply(nil, 7, &steadyLease)
	require.NoError(b, err)
	b.ReportAllocs()
	for b.Loop() {
		var reply wire.GrantReply
		wire.DecodeReply(packet, &reply)
	}
}
