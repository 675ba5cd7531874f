package harness

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// LongWait is a time limit of a request, in milliseconds, that is longer than any test.
const LongWait = uint64(Patience / time.Millisecond)

// Raw is a client that sends any request, including requests that no client should send. Its methods fail the test if the connection fails.
type Raw struct {
	testing.TB
	Conn   *seqpacket.Conn
	Buffer []byte // the buffer that each packet is received into
}

// DialRaw connects to a service. The client has not said hello.
func DialRaw(t testing.TB, path string) *Raw {
	t.Helper()
	conn, err := seqpacket.Dial(context.Background(), path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &Raw{t, conn, make([]byte, wire.MaxPacket)}
}

// Greeted returns a client whose session is open. The session uses no optional features of the protocol.
func Greeted(t testing.TB, path string) *Raw {
	t.Helper()
	r := DialRaw(t, path)
	r.Ask(1, &wire.Hello{Versions: []uint64{1}, Name: "raw"}, &wire.HelloReply{})
	return r
}

// Streaming returns a client with an open session, and the id of the session's timeline. The session has all features. The timeline is
// sealed: no client can map its page for writing any more.
func Streaming(t testing.TB, path string) (*Raw, uint64) {
	t.Helper()
	r := DialRaw(t, path)
	var hello wire.HelloReply
	r.Ask(1, &wire.Hello{Versions: []uint64{1}, Features: []string{wire.FeatureTimelines, wire.FeatureChannels, wire.FeatureRanges, "telepathy"}}, &hello)
	require.Equal(t, []string{wire.FeatureTimelines, wire.FeatureChannels, wire.FeatureRanges}, hello.Features)
	var tl wire.TimelineReply
	r.Ask(2, &wire.GetTimeline{}, &tl)
	require.EqualValues(t, wire.TimelineWords, tl.Words)
	r.Ask(3, &wire.Seal{}, &wire.EmptyReply{})
	return r, tl.Timeline
}

// Send sends a request.
func (r *Raw) Send(q uint32, m wire.Request) {
	r.Helper()
	packet, err := wire.AppendRequest(nil, q, m)
	require.NoError(r, err)
	require.NoError(r, r.Conn.Send(packet, nil))
}

// Recv returns the next packet. Recv closes the packet's descriptors.
func (r *Raw) Recv() ([]byte, error) {
	n, fds, err := r.Conn.Recv(r.Buffer)
	if err == nil {
		err = fds.Close()
	}
	return r.Buffer[:n], err
}

// Reply receives the reply to request q. Only notices may come before it.
func (r *Raw) Reply(q uint32, into wire.Reply) error {
	r.Helper()
	for {
		packet, err := r.Recv()
		if err != nil {
			return err
		}
		h, err := wire.DecodeHeader(packet)
		require.NoError(r, err)
		if h.Q == 0 {
			continue
		}
		require.Equal(r, q, h.Q)
		return h.DecodeReply(into)
	}
}

// Ask sends a request that must succeed, and receives its reply.
func (r *Raw) Ask(q uint32, m wire.Request, into wire.Reply) {
	r.Helper()
	r.Send(q, m)
	require.NoError(r, r.Reply(q, into))
}

// Refused sends a request that must fail with the given code.
func (r *Raw) Refused(q uint32, m wire.Request, code wire.Code) {
	r.Helper()
	r.Send(q, m)
	require.ErrorIs(r, r.Reply(q, &wire.EmptyReply{}), code)
}

// CutOff reads until the connection ends, and returns the packets that came before.
func (r *Raw) CutOff() (packets [][]byte) {
	r.Helper()
	for {
		packet, err := r.Recv()
		if err != nil {
			require.Truef(r, errors.Is(err, io.EOF) || errors.Is(err, seqpacket.ErrPeerClosed), "%v", err)
			return packets
		}
		packets = append(packets, append([]byte(nil), packet...))
	}
}

// Last reads until the connection ends, and returns the error of the last packet, which must be a reply or a goodbye.
func (r *Raw) Last() *wire.Error {
	r.Helper()
	packets := r.CutOff()
	require.NotEmpty(r, packets, "the service said nothing")
	packet := packets[len(packets)-1]
	if n, err := wire.DecodeNotice(packet); err == nil {
		return &n.(*wire.Goodbye).Reason
	}
	_, err := wire.DecodeReply(packet, &wire.EmptyReply{})
	failure, ok := errors.AsType[*wire.Error](err)
	require.True(r, ok, "%v", err)
	return failure
}

// BytesTensor describes n bytes.
func BytesTensor(n uint64) wire.Tensor { return wire.Tensor{DType: "uint8", Shape: []uint64{n}} }
