package ledger

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// books is a ledger with a record of each kind.
type books struct {
	*Ledger
	pool            *Pool
	writer, reader  *Session
	written, shared *Buffer
	ranged          *Buffer // a range of written
	free, pending   *Block
	kept            *Buffer
	channel         *Channel
	producer        *Member // of the writer
	consumer        *Member // of the reader
	noted           Records // see changed
	gone            *Member // of a session that is forgotten; it has a seat, and the channel keeps its buffer
}

// newBooks makes a ledger with two sessions and a pool. The pool has a buffer that is written, a buffer that is published and read, a free
// block, a free block with work under way, and a channel with three members. One of them, the producer of a third session, has left, and the
// session is forgotten, but the channel keeps the member's buffer.
func newBooks(t testing.TB) *books {
	t.Helper()
	b := &books{Ledger: New(Limits{})}
	b.NoteChanges()
	b.pool = b.ReservePool("p", 7, mempool.Access{UIDs: []uint32{7}})
	b.AddPool(b.pool, mempool.PoolInfo{Name: "p", MaxBytes: 1 << 20, SessionBytes: 1 << 19}, 512, 0)
	b.writer = b.OpenSession(mempool.Peer{UID: 7, PID: 1, Process: 11}, false, time.Unix(1000, 0).UTC())
	b.reader = b.OpenSession(mempool.Peer{UID: 7, PID: 2}, true, time.Unix(1001, 0).UTC())
	b.AddTimeline(b.writer).Sealed = true
	fence := Fences{{Timeline: b.writer.Timeline.ID, Word: 3, Value: 5}}
	require.NoError(t, b.writer.PromiseFence(fence[0]))
	bufferOf := func(s *Session, bytes uint64) *Buffer {
		account := s.Account(b.pool)
		block := account.Grow((bytes+511)/512*512).Done(1, 0, nil)
		of := b.AddBuffer(block, account, s.Describe(mempool.Bytes(bytes)), bytes, 3)
		b.Grant(of, s, true, nil, 4)
		s.Map(block)
		return of
	}
	buffer := func(bytes uint64) *Buffer { return bufferOf(b.writer, bytes) }
	end := func(of *Buffer) *Block {
		of.Writer.End()
		b.RemoveBuffer(of)
		return of.Block
	}
	b.written, b.shared = buffer(1000), buffer(100)
	free, pending := buffer(2000), buffer(512)
	b.free, b.pending = end(free), end(pending)
	require.True(t, b.free.TakeBack())
	b.pending.Fences = fence
	require.True(t, b.pending.TakeBack())
	require.True(t, b.pending.Pending())
	l := b.shared.Writer
	b.SetName(mempool.Publication{Name: "weights"}, b.shared, b.writer)
	b.SetName(mempool.Publication{Name: "drafts", WhileUsed: true}, b.written, b.writer)
	l.Demote()
	b.shared.Ready = fence
	b.shared.SetEvent([]byte{1, 2})
	b.Grant(b.shared, b.reader, false, fence, 5)
	b.shared.Fail("out of luck")

	b.channel = b.AddChannel(mempool.ChannelSpec{Name: "frames", Pool: b.pool.Info.ID, Capacity: 4}.Filled(), b.pool, 7)
	dead := b.OpenSession(mempool.Peer{UID: 8, PID: 3, Process: 13}, false, time.Unix(1002, 0).UTC())
	b.AddTimeline(dead).Sealed = true
	join := func(s *Session, role MemberRole, seat int) *Member {
		spec := MemberSpec{Role: role}
		require.NoError(t, b.MayJoin(s, b.channel, spec))
		m := b.AddMember(b.channel, s, spec, b.channel.LastMember+1, seat)
		m.Entered = true
		return m
	}
	b.producer, b.consumer, b.gone = join(b.writer, Producer, 0), join(b.reader, Consumer, 0), join(dead, Producer, 1)
	b.kept = bufferOf(dead, 512)
	b.kept.Block.Hold(dead)
	b.EndSession(dead)
	b.gone.Leave(false)
	b.channel.Retain(b.kept, []*Member{b.gone})
	b.kept.Doubted = true
	b.ranged = b.AddRange(b.written, 500, b.writer.Describe(mempool.Bytes(100)), 100, 3)
	b.Grant(b.ranged, b.writer, true, nil, 4)
	require.Empty(t, b.kept.Writer.End())
	require.False(t, b.EndTimeline(dead.Timeline), "its member still writes it")
	b.kept.Block.Left(dead)
	require.False(t, b.kept.Block.EndHold())
	dead.Unmap(b.kept.Block)
	b.ForgetSession(dead)
	require.Empty(t, b.Check())
	return b
}

// changed returns the records of the changes so far.
func (b *books) changed() *Records {
	if err := b.noted.Apply(b.AppendChanges(nil)); err != nil {
		panic(err)
	}
	return &b.noted
}

func TestACheckSaysWhatIsWrong(t *testing.T) {
	for says, breaks := range map[string]func(b *books){
		"pool 1: reserved is":                          func(b *books) { b.pool.Reserved++ },
		"pool 1: leased is":                            func(b *books) { b.pool.Leased-- },
		"pool 1: cached is":                            func(b *books) { b.pool.Cached++ },
		"pool 1: held is":                              func(b *books) { b.pool.Held++ },
		"pool 1: used is":                              func(b *books) { b.pool.Used++ },
		"pool 1: the number of blocks is":              func(b *books) { b.pool.Blocks++ },
		"pool 1: the number of leases is":              func(b *books) { b.pool.Has.Leases++ },
		"pool 1: the number of buffers is":             func(b *books) { b.pool.Has.Buffers++ },
		"pool 1: the number of names is":               func(b *books) { b.pool.Has.Names++ },
		"more than its":                                func(b *books) { b.pool.Info.MaxBytes = 512 },
		"pool 1: the bytes of each user":               func(b *books) { b.pool.users[7]++ },
		"that no session maps is":                      func(b *books) { b.pool.loose++ },
		"the number of listed free blocks is":          func(b *books) { clear(b.pool.cache) },
		"pending blocks of":                            func(b *books) { b.pool.pending[512].count++ },
		"is listed as pending, and is held":            func(b *books) { b.pending.State = BlockHeld },
		"that count for processes is":                  func(b *books) { b.pool.charged[b.free] = struct{}{} },
		"the pools of each user":                       func(b *books) { b.poolsOf[7]++ },
		"is not found by its name":                     func(b *books) { delete(b.PoolNames, "p") },
		"names pool 1, which is gone":                  func(b *books) { delete(b.Pools, 1) },
		"the account of session 1 in pool 1":           func(b *books) { b.writer.Account(b.pool).bytes++ },
		"keeps other bytes than its blocks":            func(b *books) { b.writer.Keeper.kept[b.pool]++ },
		"the number of sessions is":                    func(b *books) { b.writer.Keeper.sessions++ },
		"the sessions of each user":                    func(b *books) { b.sessionsOf[7]-- },
		"is newer than the last":                       func(b *books) { b.Last.Session = 1 },
		"the names of each user":                       func(b *books) { b.namesOf[7]++ },
		"last published as \"\" v0, and has the name":  func(b *books) { delete(b.published, 2) },
		"a publication of buffer 77":                   func(b *books) { b.published[77] = published{} },
		"names buffer 2, which is gone":                func(b *books) { b.Buffers.Remove(2) },
		"belongs to a session that does not have it":   func(b *books) { clear(b.writer.Names) },
		"buffer 2: the number of names is":             func(b *books) { b.shared.Names++ },
		"buffer 1 uses block 1, which is gone":         func(b *books) { b.Blocks.Remove(1) },
		"buffer 1 uses block 1, which is freeing":      func(b *books) { b.written.Block.State = BlockFreeing },
		"has generation 9 of block 1":                  func(b *books) { b.written.Generation = 9 },
		"buffer 1 has 5000 bytes":                      func(b *books) { b.written.Bytes = 5000 },
		"two buffers use block 1":                      func(b *books) { b.shared.Block = b.written.Block },
		"the name \"drafts\" should have ended":        func(b *books) { b.Names.Get("drafts").Owner = b.writer },
		"nothing holds buffer 2":                       func(b *books) { b.RemoveName(b.Names.Get("weights")); b.shared.Readers = SmallSet[*Lease]{} },
		"buffer 1: the number of ranges is 2":          func(b *books) { b.divisions[1].ranges++ },
		"buffer 6 is a range of buffer 1, which is":    func(b *books) { b.ranged.Account = b.reader.Account(b.pool) },
		"buffer 6 reaches beyond buffer 1":             func(b *books) { b.divisions[6].base = 950 },
		"there is a division of buffer 2, which":       func(b *books) { b.divisions[2] = new(division) },
		"in no channel":                                func(b *books) { b.written.Doubted = true },
		"has a writer and 2 readers":                   func(b *books) { b.shared.Writer = b.written.Writer },
		"has a writer without such a lease":            func(b *books) { b.Leases.Remove(b.written.Writer.ID) },
		"has a reader without such a lease":            func(b *books) { b.Leases.Remove(5) },
		"which does not know it":                       func(b *books) { b.shared.Readers = SmallSet[*Lease]{} },
		"is on buffer 1, which is gone":                func(b *books) { b.Buffers.Remove(1) },
		"has ended, and is in the table":               func(b *books) { b.written.Writer.Ended = true },
		"session 1, which does not have it":            func(b *books) { delete(b.writer.Leases, b.written.Writer.ID) },
		"reason why buffer 2 failed":                   func(b *books) { b.shared.Failed = false },
		"an event of buffer 77":                        func(b *books) { b.events[77] = nil },
		"session 1 maps block 1, and does not know":    func(b *books) { delete(b.writer.Mapped, 1) },
		"which is gone or does not know it":            func(b *books) { b.written.Block.Mapped.Remove(b.writer) },
		"timeline 1 belongs to session 1":              func(b *books) { b.writer.Timeline = nil },
		"timeline 1 is not sealed, and has fences":     func(b *books) { b.writer.Timeline.Sealed = false },
		"timeline 1: the number of references is":      func(b *books) { b.writer.Timeline.references++ },
		"timeline 1 is over, and its session is not":   func(b *books) { b.writer.Timeline.Dead = true },
		"timeline 2 is over, and its session is not":   func(b *books) { b.gone.Timeline.references = 0 },
		"timeline 1 has fences of":                     func(b *books) { b.writer.Timeline.Promised = make([]uint64, 1<<12) },
		"timeline 1 is shown to session 3":             func(b *books) { b.writer.Timeline.Shown[b.gone.Session] = struct{}{} },
		"waits for timeline 1, which is gone":          func(b *books) { delete(b.Timelines, 1) },
		"waits for timeline 1, which its session":      func(b *books) { clear(b.writer.Timeline.Shown) },
		"session 1 has timeline 2, which is":           func(b *books) { b.writer.Timeline = b.gone.Timeline },
		"pool 1 is closed, and not being destroyed":    func(b *books) { b.pool.Closed = true },
		"pool 1: the number of channels is":            func(b *books) { b.pool.Channels++ },
		"pool 1: the producers are counted":            func(b *books) { b.pool.Producers[b.writer]++ },
		"channel 1 is in the table as 1, and the last": func(b *books) { b.Last.Channel = 0 },
		"channel 1 is not found by its name":           func(b *books) { delete(b.ChannelNames, "frames") },
		"names channel 1, which is gone or closed":     func(b *books) { b.channel.Closed = true },
		"counts as left by its consumers":              func(b *books) { b.channel.Alone = time.Unix(1, 0) },
		"channel 1 is in a pool that is gone":          func(b *books) { b.channel.Pool = new(Pool) },
		"the number of members is":                     func(b *books) { b.members-- },
		"member 1 of channel 1 is in the table as 1":   func(b *books) { b.channel.LastMember = 0 },
		"member 1 of channel 1 belongs to session 1":   func(b *books) { clear(b.writer.Members) },
		"member 3 of channel 1 has not left":           func(b *books) { b.gone.Left = false },
		"said that it leaves, and has not left":        func(b *books) { b.producer.Said = true },
		"is reserved, and has entered or is no":        func(b *books) { b.producer.Reserved = true },
		"has the role \"actor\"":                       func(b *books) { b.consumer.Role = "actor" },
		"two producers of channel 1 have seat 0":       func(b *books) { b.gone.Seat = 0 },
		"writes timeline 2, which is gone or another":  func(b *books) { b.producer.Timeline = b.gone.Timeline },
		"session 2 has member 2 of channel 1":          func(b *books) { delete(b.channel.Members, 2) },
		"retains buffer 5, which is gone":              func(b *books) { b.Buffers.Remove(5) },
		"retains buffer 5 of no producer":              func(b *books) { b.channel.Retained[b.kept] = nil },
		"retains buffer 5 of member 1":                 func(b *books) { b.channel.Retained[b.kept][0] = b.producer },
		"buffer 5: the number of channels is":          func(b *books) { b.kept.Frames++ },
		"has two fences of word 3":                     func(b *books) { b.pending.Fences = append(b.pending.Fences, b.pending.Fences...) },
		"which cannot be":                              func(b *books) { b.pending.Fences = Fences{{Timeline: 5, Word: 1, Value: 1}} },
		"has 1 holds":                                  func(b *books) { b.free.Holds = 1 },
		"is held by nobody":                            func(b *books) { b.free.State = BlockHeld },
		"counts for 1 processes, and the pool's set":   func(b *books) { delete(b.pool.charged, b.pending) },
		"is freed, and still in the table":             func(b *books) { b.free.State = BlockFreed },
		"has ended, and has 3 leases":                  func(b *books) { b.EndSession(b.writer) },
		"is known, and has no session":                 func(b *books) { b.keepers[keeperKey{4, 4}] = &Keeper{keeperKey: keeperKey{4, 4}} },
		"counts for another process":                   func(b *books) { b.reader.Peer.Process = 5 },
		"keeps block 3, and is not an ended one":       func(b *books) { b.free.keeping().left.Add(b.writer) },
		"the number of blocks that could not be freed": func(b *books) { b.pool.stuck = []*Block{b.free} },
	} {
		t.Run(says, func(t *testing.T) {
			b := newBooks(t)
			breaks(b)
			found := ""
			for _, fault := range b.Check() {
				found += fault + "\n"
			}
			assert.Contains(t, found, says)
		})
	}
}

func TestABlockThatGrowsCountsUntilItIsThereOrFailed(t *testing.T) {
	b := newBooks(t)
	account := b.reader.Account(b.pool)
	before := b.pool.Reserved
	growth := account.Grow(1024)
	assert.Equal(t, before+1024, b.pool.Reserved)
	assert.Empty(t, b.Check())
	growth.Failed()
	assert.Equal(t, before, b.pool.Reserved)
	assert.Empty(t, b.Check())
}

func TestAPoolThatIsGoneLeavesNothingBehind(t *testing.T) {
	b := newBooks(t)
	b.RemoveName(b.Names.Get("weights"))
	for _, l := range []*Lease{b.ranged.Writer, b.written.Writer, b.Leases.Get(2), b.Leases.Get(5)} {
		l.End()
		l.Buffer.EndNames()
		if l.Buffer.Unused() {
			if whole := b.RemoveBuffer(l.Buffer); whole == nil {
				l.Buffer.Block.Fences = nil
				require.True(t, l.Buffer.Block.TakeBack())
			}
		}
	}
	require.True(t, b.channel.Release(b.kept))
	b.RemoveBuffer(b.kept)
	require.True(t, b.kept.Block.TakeBack())
	require.Empty(t, b.Check())
	b.CloseChannel(b.channel)
	assert.Equal(t, b.gone.Timeline, b.RemoveMember(b.gone), "nothing else refers to it")
	require.Nil(t, b.RemoveMember(b.producer))
	require.Nil(t, b.RemoveMember(b.consumer))
	b.RemoveChannel(b.channel)
	require.Empty(t, b.Check())
	b.pool.Close()
	require.Empty(t, b.Check())
	chosen, all := uint64(0), b.pool.Cached
	for _, mapped := range []bool{false, true} {
		for _, block := range b.pool.Choose(&chosen, all, mapped, false, nil) {
			block.Fences = nil
			block.Become(BlockRecalling)
			b.writer.Unmap(block)
			block.Become(BlockFreeing)
			if block == b.free {
				block.NotFreed()
			} else {
				block.Freed()
			}
		}
	}
	require.Empty(t, b.Check())
	require.True(t, b.pool.Gone())
	assert.Equal(t, []*Block{b.free}, b.RemovePool(b.pool))
	assert.Empty(t, b.Check())
	assert.Zero(t, b.Blocks.Len()+len(b.Pools)+len(b.PoolNames)+len(b.writer.Accounts)+b.Channels.Len()+len(b.ChannelNames)+len(b.pool.Producers))
}
