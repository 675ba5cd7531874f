package bridge

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/shmring"
	"github.com/poolbridge/poolbridge/bridge/wire"
)

// linked are two ends of a connection with a ring, which both use.
func linked(t *testing.T) (a, b *link) {
	t.Helper()
	x, y, err := seqpacket.Pair()
	require.NoError(t, err)
	one, files, err := shmring.New()
	require.NoError(t, err)
	other, err := shmring.Open(files)
	require.NoError(t, err)
	require.NoError(t, files.Close())
	a, b = &link{Conn: x}, &link{Conn: y}
	for l, r := range map[*link]*shmring.Ring{a: one, b: other} {
		l.sendThrough(r)
		l.receiveThrough(r)
		l.peerReady.Store(true)
	}
	t.Cleanup(func() {
		_ = x.Close()
		_ = y.Close()
		assert.NoError(t, a.unmap())
		assert.NoError(t, b.unmap())
	})
	return a, b
}

func numbered(i, size int) []byte {
	return binary.LittleEndian.AppendUint64(make([]byte, 0, size), uint64(i))[:size]
}

// number receives a packet and returns what it is numbered.
func (l *link) number() (n uint64, fds *seqpacket.FDs, err error) {
	p, fds, err := l.Recv(packets)
	if err != nil {
		return 0, nil, err
	}
	defer p.Free()
	return binary.LittleEndian.Uint64(p.Data), fds, nil
}

func TestPacketsComeInTheOrderInWhichTheyWereSentWhicheverWayTheyCome(t *testing.T) {
	a, b := linked(t)
	file, err := os.Open(os.DevNull)
	require.NoError(t, err)
	defer file.Close()
	const n = 20_000
	sent := make(chan error, 1)
	go func() {
		for i := range n {
			var err error
			switch i % 100 {
			case 17: // with a descriptor: over the socket
				err = a.Send(numbered(i, 100), []int{int(file.Fd())})
			case 42: // too long for the ring
				err = a.Send(numbered(i, shmring.MaxPacket+8), nil)
			case 77:
				for err = seqpacket.ErrWouldBlock; err != nil; {
					err = a.TrySend(numbered(i, 100), nil, true)
				}
			default:
				err = a.Send(numbered(i, 16+i%200), nil)
			}
			if err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	for i := range n {
		got, fds, err := b.number()
		require.NoError(t, err)
		require.EqualValues(t, i, got)
		want := 0
		if i%100 == 17 {
			want = 1
		}
		require.Equal(t, want, fds.Len(), "packet %d", i)
		require.NoError(t, fds.Close())
	}
	require.NoError(t, <-sent)
}

// passage is an entry of docs/vectors/v1.json. A number stands for so many bytes of zeros.
type passage struct {
	Name            string
	Packets, Socket []json.RawMessage
	Head            uint64
	At              int
	Bytes           string
}

func unpack(t *testing.T, text json.RawMessage) []byte {
	t.Helper()
	var zeros int
	if json.Unmarshal(text, &zeros) == nil {
		return make([]byte, zeros)
	}
	var digits string
	require.NoError(t, json.Unmarshal(text, &digits))
	data, err := hex.DecodeString(digits)
	require.NoError(t, err)
	return data
}

func TestASenderGoesFromTheRingToTheSocketAndBackAsTheProtocolSays(t *testing.T) {
	text, err := os.ReadFile("../docs/vectors/v1.json")
	require.NoError(t, err)
	var file struct{ Passages []passage }
	require.NoError(t, json.Unmarshal(text, &file))
	require.NotEmpty(t, file.Passages)
	for _, v := range file.Passages {
		t.Run(v.Name, func(t *testing.T) {
			near, far, err := seqpacket.Pair()
			require.NoError(t, err)
			defer far.Close()
			defer near.Close()
			ring, files, err := shmring.New()
			require.NoError(t, err)
			defer files.Close()
			reader, err := shmring.Open(files)
			require.NoError(t, err)
			defer reader.Close()
			l := &link{Conn: near}
			l.sendThrough(ring)
			l.receiveThrough(ring)
			l.peerReady.Store(true)
			defer l.unmap()
			raw, err := far.SyscallConn()
			require.NoError(t, err)
			var socket [][]byte
			buf := make([]byte, wire.MaxPacket)
			for _, packet := range v.Packets {
				require.NoError(t, l.TrySend(unpack(t, packet), nil, false))
				require.NoError(t, raw.Control(func(fd uintptr) {
					for n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err == nil; n, _, err = unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT) {
						socket = append(socket, bytes.Clone(buf[:n]))
					}
				}))
				for kind := shmring.Packet; kind != shmring.Nothing; {
					_, kind, err = reader.Take(buf)
					require.NoError(t, err)
				}
			}
			require.Len(t, socket, len(v.Socket))
			for i, packet := range v.Socket {
				assert.Equal(t, unpack(t, packet), socket[i])
			}
			words := make([]byte, shmring.FileSize)
			_, err = files.Reads.ReadAt(words, 0)
			require.NoError(t, err)
			assert.Equal(t, v.Head, binary.LittleEndian.Uint64(words))
			want, err := hex.DecodeString(v.Bytes)
			require.NoError(t, err)
			assert.Equal(t, want, words[v.At:v.At+len(want)])
		})
	}
}

func TestAPeerThatReadsNothingFillsTheRingAndThenTheSocket(t *testing.T) {
	a, b := linked(t)
	n := 0
	for ; ; n++ {
		if err := a.TrySend(numbered(n, 1000), nil, false); err != nil {
			require.ErrorIs(t, err, seqpacket.ErrWouldBlock)
			break
		}
	}
	assert.Greater(t, n, shmring.Size/1008, "the socket took some")
	for i := range n {
		got, _, err := b.number()
		require.NoError(t, err)
		require.EqualValues(t, i, got)
	}
	require.NoError(t, a.TrySend(numbered(n, 1000), nil, false))
	got, _, err := b.number()
	require.NoError(t, err)
	assert.EqualValues(t, n, got)
	assert.False(t, a.aside, "and it goes through the ring again")
}

func TestWhatWasSentBeforeThePeerLeftComesBeforeTheEnd(t *testing.T) {
	a, b := linked(t)
	for i := range 100 {
		require.NoError(t, a.Send(numbered(i, 100), nil))
	}
	require.NoError(t, a.Close())
	for i := range 100 {
		got, _, err := b.number()
		require.NoError(t, err)
		require.EqualValues(t, i, got)
	}
	_, _, err := b.number()
	require.ErrorIs(t, err, io.EOF)
}

func TestAReceiverThatSleepsIsWokenByAPacketInTheRing(t *testing.T) {
	a, b := linked(t)
	came := make(chan error)
	go func() {
		for range 200 {
			_, _, err := b.number()
			came <- err
		}
	}()
	for i := range 200 {
		require.NoError(t, a.Send(numbered(i, 100), nil))
		require.NoError(t, <-came) // it may go to sleep now
	}
}

func TestAPacketOverTheSocketThatTheRingKnowsNothingOfIsAnError(t *testing.T) {
	a, b := linked(t)
	require.NoError(t, a.Send(numbered(0, 100), nil))
	_, _, err := b.number()
	require.NoError(t, err)
	require.NoError(t, a.Conn.Send(numbered(1, 100), nil))
	_, _, err = b.number()
	require.ErrorIs(t, err, ErrProtocol)
}

func TestDescriptorsBehindWhatTheRingStillHasAreClosedAtTheEnd(t *testing.T) {
	a, b := linked(t)
	received := make(chan error)
	receive := func() {
		_, _, err := b.number()
		received <- err
	}
	go receive()
	require.NoError(t, a.Send(numbered(0, 8), nil)) // from here on through the ring
	require.NoError(t, <-received)
	go receive()
	for i := 1; ; i++ { // until it sleeps: it is not woken, so that it looks into the socket first
		ok, asleep, err := a.out.Put(numbered(i, 8))
		require.NoError(t, err)
		require.True(t, ok)
		if asleep {
			break
		}
		require.NoError(t, <-received)
		go receive()
	}
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	require.NoError(t, a.Conn.Send(numbered(1, 8), []int{int(w.Fd())}))
	require.NoError(t, w.Close())
	require.NoError(t, <-received)
	require.NoError(t, b.unmap())
	_, err = r.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "nobody has it open")
}

// flood puts packets into a ring whenever there is room, until the test ends.
func flood(t *testing.T, r *shmring.Ring, packet []byte) {
	t.Helper()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _, _ = r.Put(packet)
			}
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-stopped
	})
}

func TestAPeerThatNeverStopsWritingIsNotReadAfterClose(t *testing.T) {
	a, b := linked(t)
	require.NoError(t, a.Send(numbered(0, 8), nil))
	flood(t, a.out, numbered(1, 8))
	ended := make(chan error)
	go func() {
		for {
			if _, _, err := b.number(); err != nil {
				ended <- err
				return
			}
		}
	}()
	require.NoError(t, b.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
}
