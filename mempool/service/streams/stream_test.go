package streams

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service/ledger"
)

// rig is a channel with its ledger.
type rig struct {
	testing.TB
	*ledger.Ledger
	*Stream
	pool   *ledger.Pool
	events []mempool.HistoryEvent
}

func newRig(t testing.TB, spec mempool.ChannelSpec) *rig {
	t.Helper()
	r := &rig{TB: t, Ledger: ledger.New(ledger.Limits{})}
	r.pool = r.ReservePool("p", 7, mempool.Access{UIDs: []uint32{7}})
	r.AddPool(r.pool, mempool.PoolInfo{Name: "p", MaxBytes: 1 << 20}, 4096, 0)
	spec.Name, spec.Pool = "frames", r.pool.Info.ID
	var err error
	r.Stream, err = Make(r.Ledger, new(Timelines), spec.Filled(), r.pool, 7, nil, nil, func(e mempool.HistoryEvent, _ *ledger.Pool) { r.events = append(r.events, e) })
	require.NoError(t, err)
	t.Cleanup(func() {
		r.Expire()
		r.Free()
	})
	return r
}

func (r *rig) open() *ledger.Session {
	return r.OpenSession(mempool.Peer{UID: 7, PID: 1}, false, time.Unix(1000, 0))
}

func (r *rig) add(role ledger.MemberRole) (*ledger.Member, shmchannel.MemberConfig) {
	r.Helper()
	m, err := r.Add(r.open(), ledger.MemberSpec{Role: role}, nil, func() {})
	require.NoError(r, err)
	files := r.Files(m)
	return m, shmchannel.MemberConfig{Roster: files[0], Sequencer: files[1], Own: files[2], Seat: m.Seat, ID: m.ID}
}

func (r *rig) consume() (*ledger.Member, *shmchannel.Consumer) {
	r.Helper()
	m, config := r.add(ledger.Consumer)
	c, err := shmchannel.OpenConsumer(shmchannel.ConsumerConfig{MemberConfig: config})
	require.NoError(r, err)
	r.Cleanup(func() { assert.NoError(r, c.Close()) })
	require.NoError(r, r.Enter(m))
	return m, c
}

func TestACorruptChannelEndsAndIsNoted(t *testing.T) {
	r := newRig(t, mempool.ChannelSpec{Capacity: 2})
	m, c := r.consume()
	err := r.failed(errors.Join(shmchannel.ErrCorrupt, errors.New("the tail moved")))
	require.ErrorIs(t, err, mempool.ErrClosed)
	require.Len(t, r.events, 1)
	assert.Equal(t, []any{mempool.ChannelFailed, "frames"}, []any{r.events[0].Kind, r.events[0].Channel})
	assert.Contains(t, r.events[0].Text, "the tail moved")
	_, err = c.TryTake(new(shmchannel.Frame))
	require.ErrorIs(t, err, shmchannel.ErrDestroyed)
	assert.True(t, r.Closed)
	assert.Nil(t, r.ChannelNames["frames"], "its name is free")
	_, err = r.Add(r.open(), ledger.MemberSpec{Role: ledger.Consumer}, nil, func() {})
	require.ErrorIs(t, err, mempool.ErrClosed)
	require.NoError(t, c.Leave())
	r.Leave(m, "")
	assert.Equal(t, []*ledger.Member{m}, r.Sweep())
	assert.Nil(t, r.RemoveMember(m))
	assert.True(t, r.Over())
	assert.Empty(t, r.Check())
}
