package shmchannel

import (
	"maps"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// inUse returns the blocks of one producer that a look finds. all is the result of Unsure.
func inUse(h *Host, m *Member) (blocks map[uint64]struct{}, all bool) {
	l := h.Look(m)
	blocks = maps.Clone(l.held)
	maps.Copy(blocks, l.of[m].blocks)
	return blocks, l.Unsure(m)
}

func TestOneLookAnswersForAllProducers(t *testing.T) {
	r := newRig(t, Spec{Capacity: 2})
	p, q, c := r.producer(8), r.producer(8), r.consumer(MemberSpec{Policy: DropOldest})
	leaver, other := r.consumer(MemberSpec{}), r.consumer(MemberSpec{})
	var blocks []uint64
	for _, from := range []*testProducer{p, q} {
		from.publish()
		blocks = append(blocks, from.record.Block)
		leaver.take()
		other.take()
	}
	c.take() // the consumer takes the newest or the oldest frame, and holds it
	for _, m := range []*Member{leaver.member, other.member, p.member, q.member} {
		require.NoError(t, r.host.Expel(m, Lost))
	}
	l := r.host.Look(p.member, q.member)
	assert.True(t, l.Names(p.member, blocks[0]))
	assert.True(t, l.Names(q.member, blocks[1]))
	assert.False(t, l.Names(q.member, 12345))
	assert.False(t, l.Unsure(p.member))
	assert.False(t, l.Unsure(q.member))
	assert.True(t, r.host.Look(p.member).Unsure(q.member), "it was not asked for")
	next := r.producer(8)
	for range 4 {
		next.publish()
	}
	l = r.host.Look(p.member, q.member)
	assert.True(t, l.Names(p.member, blocks[0]), "consumers that left have it in hand")
	assert.NotContains(t, l.of[q.member].blocks, blocks[0])
	assert.True(t, l.Names(q.member, blocks[1]))
}

// Each call of Look finds the blocks of 16 producers that left, while 400 consumers have used all their holds.
func BenchmarkLook(b *testing.B) {
	r := newRig(b, Spec{Capacity: 2})
	var producers []*Member
	for range 16 {
		m, err := r.host.Add(MemberSpec{Role: ProducerRole})
		require.NoError(b, err)
		require.NoError(b, r.host.Join(m))
		require.NoError(b, r.host.Expel(m, Lost))
		producers = append(producers, m)
	}
	for range 400 {
		m, err := r.host.Add(MemberSpec{Role: ConsumerRole, Policy: DropOldest})
		require.NoError(b, err)
		m.cursor.holdsUsed.Store(MaxInHand)
		require.NoError(b, r.host.Join(m))
	}
	for b.Loop() {
		r.host.Look(producers...)
	}
}
