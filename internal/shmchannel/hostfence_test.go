package shmchannel

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func (r *rig) fences(m *Member) []Fence {
	r.t.Helper()
	fences, ok := r.host.Fences(nil, m)
	require.True(r.t, ok)
	return fences
}

func TestTheHostFindsTheGreatestFenceOfEachWord(t *testing.T) {
	r := newRig(t, Spec{Capacity: 8})
	r.reached = func(Fence) bool { return false }
	m, err := r.host.Add(MemberSpec{Role: ProducerRole, Timeline: 3})
	require.NoError(t, err)
	p, err := OpenProducer(r.config(m))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, p.Close()) })
	c := r.consumer(MemberSpec{Timeline: 5})
	require.NoError(t, p.AddCursor(c.member.Seat, c.member.ID, c.member.File()))
	require.NoError(t, c.AddTrack(m.Seat, m.ID, m.File()))
	require.NoError(t, r.host.Join(m))
	assert.Empty(t, r.fences(m))
	assert.Empty(t, r.fences(c.member))

	for i, ready := range []Fence{{Word: 511, Value: MaxFenceValue}, {Word: 2, Value: 9}, {}, {Word: 2, Value: 4}} {
		_, err := p.TryPublish(&Record{Block: uint64(i + 1), Description: bytes64, Ready: ready})
		require.NoError(t, err)
	}
	assert.Equal(t, []Fence{{Timeline: 3, Word: 2, Value: 9}, {Timeline: 3, Word: 511, Value: MaxFenceValue}}, r.fences(m))

	for _, done := range []Fence{{Word: 1, Value: 7}, {}, {Word: 0, Value: 1}} {
		require.NoError(t, c.Release(c.take(), done))
	}
	assert.Equal(t, []Fence{{Timeline: 5, Word: 0, Value: 1}, {Timeline: 5, Word: 1, Value: 7}}, r.fences(c.member))

	entry := c.cursor.doneAt(1)
	entry.number.Store(0)
	_, ok := r.host.Fences(nil, c.member)
	assert.False(t, ok, "one is being written")
	entry.number.Store(1)
	entry.word.Store(MaxWord + 1)
	assert.Equal(t, []Fence{{Timeline: 5, Word: 0, Value: 1}}, r.fences(c.member), "no timeline has that word")
	entry.word.Store(1)
	entry.value.Store(MaxFenceValue + 1)
	assert.Equal(t, []Fence{{Timeline: 5, Word: 0, Value: 1}}, r.fences(c.member))

	entry.number.Store(0)
	require.NoError(t, r.host.Gone(c.member))
	assert.Empty(t, r.fences(c.member), "what it began has ended with it")
}

func TestAMemberWithoutATimelineHasNoFences(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, c := r.producer(2), r.consumer(MemberSpec{})
	p.record.Ready = Fence{Word: 1, Value: 1}
	p.publish()
	require.NoError(t, c.Release(c.take(), Fence{Word: 1, Value: 1}))
	assert.Empty(t, r.fences(p.member))
	assert.Empty(t, r.fences(c.member))
}
