package ledger

import (
	"errors"
	"reflect"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestALedgerThatWasWrittenIsReadBack(t *testing.T) {
	b := newBooks(t)
	b.written.Block.Hold(b.reader) // a session that has ended keeps the block
	b.Leases.Get(5).End()
	b.reader.Map(b.free)
	b.EndSession(b.reader)
	b.consumer.Leave(true)
	require.Empty(t, b.Check())
	written := b.Written()
	assert.Empty(t, b.changed().Differs(written), "each change was noted")
	read, err := Read(b.changed(), b.Limits)
	require.NoError(t, err)
	assert.Empty(t, read.Written().Differs(written))
	have, want := read.Pools[1], b.pool
	assert.Equal(t, []any{want.Reserved, want.Leased, want.Cached, want.Held, want.Used, want.Blocks, want.Has, want.loose, want.users},
		[]any{have.Reserved, have.Leased, have.Cached, have.Held, have.Used, have.Blocks, have.Has, have.loose, have.users})
	assert.EqualError(t, read.Buffers.Get(2).Incomplete(), b.shared.Incomplete().Error())
	assert.Equal(t, []any{read.Buffers.Get(1), uint64(500)}, []any{read.Buffers.Get(6).Whole(), read.Buffers.Get(6).Base()})
	assert.Equal(t, []byte{1, 2}, read.Buffers.Get(2).Event())
	assert.Equal(t, b.pending.ID, have.Own(read.Sessions.Get(1), 512).ID, "its process still has the block that its work uses")
	assert.Equal(t, b.free.ID, have.Idle(b.free.Size).ID)
	ch := read.ChannelNames["frames"]
	assert.Equal(t, []any{b.channel.Info, 3, map[uint32]int{7: 1}}, []any{ch.Info, len(ch.Members), producersOf(have)})
	lost := ch.Retained[read.Buffers.Get(b.kept.ID)][0]
	assert.Equal(t, []any{ch.Members[3], true, uint64(3), true}, []any{lost, lost.Left, lost.Session.ID, lost.Timeline.Dead}, "its session is forgotten")
	assert.Nil(t, read.Ended.Get(3))
	assert.True(t, ch.Release(read.Buffers.Get(b.kept.ID)), "nothing has it any more")
	assert.Equal(t, lost.Timeline, read.RemoveMember(lost), "nothing refers to it any more")
	block := have.ledger.Sessions.Get(1).Account(have).Grow(512).Done(1, 0, nil)
	assert.Equal(t, b.Last.Block+1, block.ID, "no id comes again")
}

func TestAChannelThatOutlivesItsPoolIsWrittenWithIt(t *testing.T) {
	b := newBooks(t)
	p := b.ReservePool("q", 9, mempool.Access{GIDs: []uint32{5}})
	b.AddPool(p, mempool.PoolInfo{Name: "q", MaxBytes: 1 << 20}, 512, 0)
	ch := b.AddChannel(mempool.ChannelSpec{Name: "last", Pool: p.Info.ID, Capacity: 1}.Filled(), p, 9)
	b.AddMember(ch, b.reader, MemberSpec{Role: Consumer}, 1, 0)
	p.Close()
	p.Closed = true
	b.CloseChannel(ch)
	b.RemovePool(p)
	require.Empty(t, b.Check())
	read, err := Read(b.changed(), b.Limits)
	require.NoError(t, err)
	assert.Empty(t, read.Written().Differs(b.changed()))
	assert.Nil(t, read.Pools[p.Info.ID])
	assert.Equal(t, p.Access, read.Channels.Get(ch.Info.ID).Pool.Access)
	p.Channels++
	assert.Len(t, b.Check(), 1, "its channels are counted")
}

func TestWhatIsNoRecordIsRefused(t *testing.T) {
	data := newBooks(t).AppendAll(nil, nil)
	for n := range data {
		var cut Records
		if cut.Apply(data[:n]) != nil {
			continue // there is no whole record
		}
		_, err := Read(&cut, Limits{})
		assert.True(t, err == nil || errors.Is(err, mempool.ErrInvalid), "%v", err)
	}
	for _, bad := range [][]byte{{byte(tables), 1, 1}, {byte(inLeases), 1, 2}, {byte(inSessions), 1, 1, 0xff}} {
		assert.ErrorIs(t, new(Records).Apply(bad), mempool.ErrInvalid)
	}
}

func TestALedgerThatContradictsItselfIsRefused(t *testing.T) {
	for says, breaks := range map[string]func(b *books){
		"there is no block 1":       func(b *books) { b.Blocks.Remove(1) },
		"there is no buffer 2":      func(b *books) { b.Buffers.Remove(2) },
		"there is no session 9":     func(b *books) { b.Leases.Get(5).Session = &Session{ID: 9} },
		"is in a pool that is gone": func(b *books) { delete(b.Pools, 1) },
		"there is no timeline 2":    func(b *books) { delete(b.Timelines, 2) },
		"two buffers use":           func(b *books) { b.shared.Block = b.written.Block },
	} {
		b := newBooks(t)
		breaks(b)
		_, err := Read(b.Written(), b.Limits)
		assert.ErrorIs(t, err, mempool.ErrInvalid)
		assert.ErrorContains(t, err, says)
	}
}

// A new field of a record must be written, or be computed when the ledger is read: then it is listed here.
func TestEveryFieldOfARecordIsWrittenOrComputed(t *testing.T) {
	for _, one := range []struct {
		record, entry any
		computed      []string // or in the key, or written under another name, or records of its own
	}{
		{Session{}, sessionFields{}, []string{"ledger", "ID", "Done", "Answers", "Leases", "Names", "Mapped", "Accounts", "Members", "Timeline", "most", "Keeper", "forgotten", "holders", "tensor"}},
		{Pool{}, poolFields{}, []string{"ledger", "Access", "Reserved", "Leased", "Cached", "Held", "Used", "Blocks", "Has", "Channels", "Producers", "growing", "cache", "loose", "pending",
			"lastPending", "stuck", "users", "charged", "names"}},
		{Block{}, blockFields{}, []string{"ID", "Mapped", "kept"}},
		{Buffer{}, bufferFields{}, []string{"ID", "Account", "Writer", "Readers", "Names"}},
		{Lease{}, leaseFields{}, []string{"ID", "Ended"}},
		{Name{}, nameFields{}, []string{"Text"}},
		{Timeline{}, timelineFields{}, []string{"ledger", "ID", "Shown", "references"}},
		{Channel{}, channelFields{}, []string{"Info", "Pool", "Members", "Retained"}},
		{Member{}, memberFields{}, []string{"ID", "Channel", "retained"}},
	} {
		record, entry := reflect.TypeOf(one.record), reflect.TypeOf(one.entry)
		for _, field := range reflect.VisibleFields(record) {
			if field.Anonymous {
				continue // its own fields are visible, too
			}
			name := field.Name
			_, written := entry.FieldByName(name)
			listed := false
			for _, c := range one.computed {
				listed = listed || c == name
			}
			assert.NotEqual(t, written, listed, "%v.%s", record, name)
		}
	}
}

// producersOf counts the producers of each user.
func producersOf(p *Pool) map[uint32]int {
	of := make(map[uint32]int)
	for s, n := range p.Producers {
		of[s.Peer.UID] += n
	}
	return of
}
