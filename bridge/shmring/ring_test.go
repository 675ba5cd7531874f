package shmring

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// ends makes a ring and its other end.
func ends(t *testing.T) (service, client *Ring) {
	t.Helper()
	service, files, err := New()
	require.NoError(t, err)
	client, err = Open(files)
	require.NoError(t, err)
	require.NoError(t, files.Close())
	t.Cleanup(func() {
		assert.NoError(t, service.Close())
		assert.NoError(t, client.Close())
	})
	return service, client
}

func put(t *testing.T, r *Ring, packet []byte) (wake bool) {
	t.Helper()
	ok, wake, err := r.Put(packet)
	require.NoError(t, err)
	require.True(t, ok, "there is room")
	return wake
}

func take(t *testing.T, r *Ring) []byte {
	t.Helper()
	buf := make([]byte, MaxPacket)
	n, kind, err := r.Take(buf)
	require.NoError(t, err)
	require.Equal(t, Packet, kind)
	return buf[:n]
}

func TestPacketsOfEverySizeComeInOrderInBothDirections(t *testing.T) {
	a, b := ends(t)
	random := rand.New(rand.NewPCG(1, 2))
	for _, way := range [][2]*Ring{{a, b}, {b, a}} {
		from, to := way[0], way[1]
		var sent [][]byte
		for i := range 20_000 {
			packet := make([]byte, 1+random.IntN(300))
			if i%500 == 0 {
				packet = make([]byte, 1+random.IntN(MaxPacket))
			}
			for j := range packet {
				packet[j] = byte(i + j)
			}
			for {
				ok, _, err := from.Put(packet)
				require.NoError(t, err)
				if ok {
					break
				}
				require.NotEmpty(t, sent, "an empty ring takes every packet")
				require.Equal(t, sent[0], take(t, to))
				sent = sent[1:]
			}
			sent = append(sent, packet)
		}
		for _, packet := range sent {
			require.Equal(t, packet, take(t, to))
		}
		assert.True(t, to.Empty())
	}
}

func TestAFullRingRefusesAPacketAndStillTakesAMark(t *testing.T) {
	a, b := ends(t)
	n := 0
	for packet := make([]byte, 100); ; n++ {
		ok, _, err := a.Put(packet)
		require.NoError(t, err)
		if !ok {
			break
		}
	}
	a.Mark()
	for range n {
		assert.Len(t, take(t, b), 100)
	}
	drained, err := a.Drained()
	require.NoError(t, err)
	assert.False(t, drained, "the mark was not taken")
	_, kind, err := b.Take(make([]byte, MaxPacket))
	require.NoError(t, err)
	assert.Equal(t, Marked, kind)
	drained, err = a.Drained()
	require.NoError(t, err)
	assert.True(t, drained)
}

func TestAPacketThatIsTooLongIsNotForTheRing(t *testing.T) {
	a, b := ends(t)
	ok, _, err := a.Put(make([]byte, MaxPacket+1))
	require.NoError(t, err)
	assert.False(t, ok)
	assert.True(t, b.Empty())
	put(t, a, make([]byte, MaxPacket))
	assert.Len(t, take(t, b), MaxPacket)
}

func TestAReaderThatSleepsIsWokenOnce(t *testing.T) {
	a, b := ends(t)
	assert.False(t, put(t, a, []byte{1}), "nobody sleeps")
	assert.False(t, b.Sleep(), "there is something to take")
	take(t, b)
	require.True(t, b.Sleep())
	assert.True(t, put(t, a, []byte{2}))
	assert.False(t, put(t, a, []byte{3}), "it was told")
	b.Wake()
	take(t, b)
	take(t, b)
	assert.False(t, put(t, a, []byte{4}), "it is awake")
}

func TestTheClientCannotWriteWhatTheServiceWrites(t *testing.T) {
	service, files, err := New()
	require.NoError(t, err)
	defer files.Close()
	defer service.Close()
	_, err = unix.Mmap(int(files.Reads.Fd()), 0, FileSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.ErrorIs(t, err, unix.EPERM)
	_, err = files.Reads.WriteAt([]byte{1}, 0)
	require.ErrorIs(t, err, unix.EPERM)
	require.ErrorIs(t, files.Writes.Truncate(0), unix.EPERM, "nor take away what it reads")
}

func TestAFileThatCouldShrinkIsNoRing(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(FileSize))
	_, err = Open(Files{Reads: f, Writes: f})
	assert.ErrorIs(t, err, ErrUnsealed)
}

// What a hostile peer may write: every one of these is an error, and nothing outside the ring is touched.
func TestACorruptPeerIsAnError(t *testing.T) {
	for name, spoil := range map[string]func(own region){
		"a head that is not aligned":        func(own region) { own.word(headOffset).Store(12) },
		"a head behind what was read":       func(own region) { own.word(headOffset).Store(^uint64(7)) },
		"more than a ring holds":            func(own region) { own.word(headOffset).Store(Size + 16) },
		"a packet longer than was written":  func(own region) { spoilLength(own, 17); own.word(headOffset).Store(16) },
		"a packet longer than any":          func(own region) { spoilLength(own, MaxPacket+1); own.word(headOffset).Store(Size) },
		"a length that overflows":           func(own region) { spoilLength(own, ^uint64(0)); own.word(headOffset).Store(Size) },
		"a length of 2 to the 63rd":         func(own region) { spoilLength(own, 1<<63); own.word(headOffset).Store(Size) },
		"a skip beyond what was written":    func(own region) { spoilLength(own, skip); own.word(headOffset).Store(64) },
		"a skip to a skip to the beginning": func(own region) { spoilLength(own, skip); own.word(headOffset).Store(Size) },
	} {
		t.Run(name, func(t *testing.T) {
			a, b := ends(t)
			spoil(b.own)
			_, kind, err := a.Take(make([]byte, MaxPacket))
			require.ErrorIs(t, err, ErrCorrupt)
			assert.Equal(t, Nothing, kind)
		})
	}
	for name, tail := range map[string]uint64{"ahead of what was written": 16, "not aligned": 4, "far behind": ^uint64(Size)} {
		t.Run("a reader "+name, func(t *testing.T) {
			a, b := ends(t)
			b.own.word(tailOffset).Store(tail)
			_, _, err := a.Put([]byte{1})
			require.ErrorIs(t, err, ErrCorrupt)
			_, err = a.Drained()
			require.ErrorIs(t, err, ErrCorrupt)
		})
	}
}

func spoilLength(own region, length uint64) { binary.LittleEndian.PutUint64(own.data(0), length) }

func TestAPacketThatChangesWhileItIsReadIsReadOnce(t *testing.T) {
	a, b := ends(t)
	put(t, b, bytes.Repeat([]byte{7}, 64))
	packet := take(t, a)
	copy(b.own.data(headBytes), bytes.Repeat([]byte{9}, 64))
	assert.Equal(t, bytes.Repeat([]byte{7}, 64), packet, "it is a copy")
}

// A peer that writes whatever it likes, at any time, ends in an error or in packets, never in a crash.
func FuzzTake(f *testing.F) {
	f.Add(uint64(16), uint64(8), uint64(3))
	f.Add(uint64(Size), skip, uint64(0))
	f.Fuzz(func(t *testing.T, head, first, second uint64) {
		a, b := ends(t)
		spoilLength(b.own, first)
		binary.LittleEndian.PutUint64(b.own.data(64), second)
		b.own.word(headOffset).Store(head)
		buf := make([]byte, MaxPacket)
		for {
			_, kind, err := a.Take(buf)
			if err != nil || kind == Nothing {
				return
			}
		}
	})
}

func BenchmarkPutTake(b *testing.B) {
	service, files, err := New()
	require.NoError(b, err)
	client, err := Open(files)
	require.NoError(b, err)
	require.NoError(b, files.Close())
	defer service.Close()
	defer client.Close()
	packet, buf := make([]byte, 200), make([]byte, MaxPacket)
	b.SetBytes(200)
	for b.Loop() {
		if ok, _, err := service.Put(packet); err != nil || !ok {
			b.Fatal(ok, err)
		}
		if _, kind, err := client.Take(buf); err != nil || kind != Packet {
			b.Fatal(kind, err)
		}
	}
}
