package session

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/poolbridge/poolbridge/bridge/internal/convert"
	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/internal/shmchannel"
	"github.com/poolbridge/poolbridge/internal/typed"
	"github.com/poolbridge/poolbridge/mempool"
)

// Blocks are the pools and the blocks that a session has mapped, and its leases on them.
type Blocks struct {
	// Device is the GPU on which the client works; "" means the GPU that has the memory.
	Device string
	// Checked makes the session tell the service with each release how it describes the lease, so that the service compares.
	Checked bool
	// Allocated and AllocatedBytes count the buffers that the service has granted to [Blocks.Allocate].
	Allocated, AllocatedBytes atomic.Uint64
	// MemoryWaits are the waits for memory. A wait counts also if the memory did not come.
	MemoryWaits Waits

	session *Session

	mu      sync.Mutex // taken by lockAndApply
	pools   map[uint64]*Pool
	blocks  map[uint64]*block
	leases  leases
	failed  map[uint64]struct{} // buffers that have failed, of leases that are granted and not in the list yet
	closing bool
	closed  bool
	telling sync.WaitGroup // those that have unmapped a block, and have not told the service yet

	arriving sync.Mutex
	came     []arrival   // what the service has said, and lockAndApply has not applied yet
	some     atomic.Bool // came is not empty
}

// arrival is what a packet of the service says: the service has granted a lease, or buffers have failed. The goroutine that reads the packets
// does not wait for mu, under which a driver may work.
type arrival struct {
	grant  wire.Grant
	export *mempool.Export
	failed []uint64
}

func (b *Blocks) arrive(a arrival) {
	b.arriving.Lock()
	defer b.arriving.Unlock()
	b.came = append(b.came, a)
	b.some.Store(true)
}

// lockAndApply locks mu, and applies what has arrived.
func (b *Blocks) lockAndApply() {
	b.mu.Lock()
	if !b.some.Load() {
		return
	}
	b.arriving.Lock()
	came := b.came
	b.came = nil
	b.arriving.Unlock()
	for _, a := range came {
		if a.failed == nil {
			b.countLocked(a.grant, a.export)
		} else {
			b.markLocked(a.failed)
		}
	}
	b.arriving.Lock()
	defer b.arriving.Unlock()
	b.some.Store(len(b.came) > 0) // not before: hasFailed does not lock mu when there is nothing
}

// mostFailed bounds how many failed buffers without a lease a session remembers: their leases may have just ended.
const mostFailed = 1024

// markLocked marks the leases on buffers that have failed. Those that are not in the list yet are marked when they come there.
func (b *Blocks) markLocked(buffers []uint64) {
	for _, id := range buffers {
		if len(b.failed) >= mostFailed {
			clear(b.failed)
		}
		b.failed[id] = struct{}{}
		for l := range b.leases.all() {
			if l.buffer == id {
				l.failed.Store(true)
				delete(b.failed, id)
			}
		}
	}
}

// addLocked adds a lease that the service has granted.
func (b *Blocks) addLocked(l *Lease) {
	b.leases.add(l)
	if _, failed := b.failed[l.buffer]; failed {
		l.failed.Store(true)
		delete(b.failed, l.buffer)
	}
}

// Pool is a pool of the service that the session has opened.
type Pool struct {
	Info mempool.PoolInfo
	mem  *mempool.ImportedPool
}

// block is what a session knows about a block of the service. A block stays mapped after its leases have ended, so that the next lease on
// the block needs no new mapping. Blocks.mu guards the fields.
type block struct {
	export   *mempool.Export // came with the first lease; its files are closed when the block is mapped
	data     []byte          // Data of the export
	mem      *mempool.ImportedBlock
	pool     uint64
	bytes    uint64
	use      uint64         // generation of the block, as the service last reported it
	view     mempool.Memory // the memory of which leases of frames use a part
	frames   map[*shmchannel.Description]described
	layouts  map[string][]mempool.NamedTensor // the arrays of frames, by the encoded layout
	leases   int
	recalled bool
	unsure   mempool.Memory  // not nil: work of this client on this memory may be running without a fence for its end
	busy     []mempool.Fence // fences of this client's work on the block; some may be reached
}

func (b *Blocks) start(s *Session) {
	b.session, b.pools, b.blocks = s, make(map[uint64]*Pool), make(map[uint64]*block)
	b.failed = make(map[uint64]struct{})
}

// Open asks the service for a pool and opens it in this process. If the request can wait, `limit` points to the request's field for the
// time limit. If this process cannot open the pool, Open destroys a pool that r has made.
func (b *Blocks) Open(ctx context.Context, try Attempt, r wire.Request, limit *uint64) (*Pool, error) {
	var reply wire.PoolReply
	files, err := b.openPool(ctx, try, r, limit, &reply)
	if err != nil {
		return nil, err
	}
	defer CloseFiles(files)
	p, err := b.importPool(reply.Pool, files)
	if create, made := r.(*wire.Create); err != nil && made && !create.Ensure {
		err = errors.Join(err, b.session.Call(ctx, &wire.Destroy{Pool: reply.Pool.ID}, &wire.EmptyReply{}))
	}
	return p, err
}

func (b *Blocks) openPool(ctx context.Context, try Attempt, r wire.Request, limit *uint64, reply *wire.PoolReply) ([]*os.File, error) {
	var files []*os.File // and no named result: a return would write it, and the receiving goroutine may write it at the same time
	err := b.session.Wait(ctx, try, r, limit, Call{Into: reply, OnReply: func(fds *seqpacket.FDs) {
		if reply.Pool.Export != nil {
			files = TakeFiles(fds, reply.Pool.Export.FDs)
		}
	}, Undo: func() { CloseFiles(files) }})
	if err != nil {
		return nil, err
	}
	return files, nil
}

// importPool opens a pool of the service in this process. If the pool is open already, importPool returns the open pool.
func (b *Blocks) importPool(came wire.PoolInfo, files []*os.File) (*Pool, error) {
	info := convert.PoolInfo(came)
	b.lockAndApply()
	defer b.mu.Unlock()
	if p := b.pools[info.ID]; p != nil {
		return p, nil
	}
	if b.closing {
		return nil, ErrClientClosed
	}
	if came.Export == nil {
		return nil, typed.Errorf(convert.ErrProtocol, "pool %q came without its export", info.Name)
	}
	mem, err := mempool.ImportPool(b.session.Epoch, info, convert.Export(came.Export, files), b.Device)
	if err != nil {
		return nil, err
	}
	p := &Pool{Info: info, mem: mem}
	b.pools[info.ID] = p
	return p, nil
}

// Find returns the open pool with this id, or nil.
func (b *Blocks) Find(id uint64) *Pool {
	b.lockAndApply()
	defer b.mu.Unlock()
	return b.pools[id]
}

// Pool returns the open pool with this id. It opens the pool if the session has not opened the pool yet.
func (b *Blocks) Pool(ctx context.Context, id uint64) (*Pool, error) {
	if p := b.Find(id); p != nil {
		return p, nil
	}
	return b.Open(ctx, Once, &wire.Open{Pool: id}, nil)
}

// Describe returns the description of a pool without opening the pool in this process.
func (b *Blocks) Describe(ctx context.Context, id uint64) (mempool.PoolInfo, error) {
	var reply wire.PoolReply
	files, err := b.openPool(ctx, Once, &wire.Open{Pool: id}, nil, &reply)
	if err != nil {
		return mempool.PoolInfo{}, err
	}
	CloseFiles(files)
	return convert.PoolInfo(reply.Pool), nil
}

// arrived makes lockAndApply count a lease on a block and keep the export that came with the lease. arrived must run in the order of the service's
// replies, because only the first lease on a block comes with an export, and a later lease may reach its caller before the first lease does.
func (b *Blocks) arrived(l wire.Grant, fds *seqpacket.FDs) {
	a := arrival{grant: l}
	if l.Export != nil {
		x := convert.Export(l.Export, TakeFiles(fds, l.Export.FDs))
		a.export = &x
	}
	b.arrive(a)
}

func (b *Blocks) countLocked(l wire.Grant, export *mempool.Export) {
	of := b.blocks[l.Block]
	if of == nil {
		of = new(block)
		b.blocks[l.Block] = of
	}
	of.leases++
	of.pool, of.bytes, of.use = l.Pool, l.BlockBytes, l.Generation
	if export != nil && of.mem == nil {
		of.forgetExport()
		of.export, of.data = export, export.Data
	} else if export != nil {
		CloseFiles(export.Files)
	}
}

func (b *block) forgetExport() {
	if b.export != nil {
		CloseFiles(b.export.Files)
		b.export = nil
	}
}

// mapped maps the block of a lease, unless the block is mapped already. It returns the mapped block and the block's memory. For a read
// lease, the memory may be read-only.
func (b *Blocks) mapped(p *Pool, l wire.Grant) (*mempool.ImportedBlock, mempool.Memory, error) {
	b.lockAndApply()
	defer b.mu.Unlock()
	of := b.blocks[l.Block]
	if b.closing || of == nil {
		return nil, nil, ErrClientClosed
	}
	if of.mem == nil {
		mem, err := p.mem.Block(l.Block, l.BlockBytes, of.export)
		if err != nil {
			return nil, nil, err
		}
		of.mem = mem
		of.forgetExport()
	}
	m, err := of.mem.Memory(l.Write)
	return of.mem, m, err
}

// Ended ends one lease on a block that the session has counted. done are the fences after which this client's work on the block is done. The
// caller has told the service before that the lease has ended.
func (b *Blocks) Ended(id uint64, done ...mempool.Fence) error { return b.left(nil, id, done...) }

// left is like Ended, and also removes the lease from the session's list.
func (b *Blocks) left(l *Lease, id uint64, done ...mempool.Fence) error {
	b.lockAndApply()
	if l != nil {
		b.leases.remove(l)
	}
	of := b.blocks[id]
	if of != nil {
		of.leases--
		of.busy = append(slices.DeleteFunc(of.busy, b.session.Timelines.Past), done...)
	}
	if of == nil || !of.recalled || of.leases > 0 { // nil: the session has been closed, or the lease is of a frame that was not counted
		b.mu.Unlock()
		return nil
	}
	if len(of.busy) > 0 {
		b.dropLaterLocked(id, of)
		b.mu.Unlock()
		return nil
	}
	b.telling.Add(1)
	defer b.telling.Done()
	err := b.dropLocked(id)
	b.mu.Unlock()
	if err != nil { // the block is still mapped, so the service must not free it
		return err
	}
	return b.dropped([]uint64{id})
}

// dropLaterLocked drops a recalled block when this client's work on the block is done, unless the block has a new lease.
func (b *Blocks) dropLaterLocked(id uint64, of *block) {
	busy := slices.Clone(of.busy)
	b.session.background.Go(func() {
		for _, t := range busy {
			if !b.session.Timelines.await(t) {
				return
			}
		}
		b.lockAndApply()
		again := b.closing || b.blocks[id] != of || of.leases > 0
		var err error
		if !again {
			b.telling.Add(1)
			defer b.telling.Done()
			err = b.dropLocked(id)
		}
		b.mu.Unlock()
		if !again && err == nil {
			_ = b.dropped([]uint64{id}) // dropped fails only if the connection is gone
		}
	})
}

// doubt notes that work on a block may still be running: no fence marks the end of the work, and the client could not wait for the end.
func (b *Blocks) doubt(id uint64, m mempool.Memory) {
	b.lockAndApply()
	defer b.mu.Unlock()
	if of := b.blocks[id]; of != nil {
		of.unsure = m
	}
}

// dropLocked unmaps a block that has no leases. If unmapping fails, the session keeps the block and unmaps it when it is closed.
func (b *Blocks) dropLocked(id uint64) error {
	of := b.blocks[id]
	if of == nil {
		return nil
	}
	of.forgetExport()
	if of.unsure != nil {
		if err := of.unsure.Synchronize(); err != nil {
			return err
		}
		of.unsure = nil
	}
	if of.mem != nil {
		if err := of.mem.Close(); err != nil {
			return err
		}
	}
	delete(b.blocks, id)
	return nil
}

// dropped tells the service that the session has unmapped blocks.
func (b *Blocks) dropped(ids []uint64) error {
	for part := range slices.Chunk(ids, wire.MaxElements) {
		if err := b.session.Send(&wire.Dropped{Blocks: part}); err != nil {
			return err
		}
	}
	return nil
}

// recall unmaps the blocks that the service wants to free. If a block has leases, the session unmaps the block when the last of these leases
// ends. If this client's work on a block is still running, the session unmaps the block when the work has ended. If recall cannot unmap a
// block, it does not tell the service that the session has dropped the block. So the service keeps the block until Blocks.Close has unmapped it,
// or until this process has ended.
func (b *Blocks) recall(ids []uint64) {
	var dropped []uint64
	b.lockAndApply()
	if b.closed { // Close has told the service that it unmapped all
		b.mu.Unlock()
		return
	}
	b.telling.Add(1)
	defer b.telling.Done()
	for _, id := range ids {
		of := b.blocks[id]
		if of != nil {
			of.busy = slices.DeleteFunc(of.busy, b.session.Timelines.Past)
		}
		switch {
		case of != nil && of.leases > 0:
			of.recalled = true
		case of != nil && len(of.busy) > 0:
			of.recalled = true
			b.dropLaterLocked(id, of)
		case b.dropLocked(id) == nil:
			dropped = append(dropped, id) // also if it is unknown: the service may have lost the packet that said so
		}
	}
	b.mu.Unlock()
	_ = b.dropped(dropped) // dropped fails only if the connection is gone
}

// MarkFailed makes lockAndApply mark the leases on buffers whose content will never be complete.
func (b *Blocks) MarkFailed(buffers []uint64) {
	if len(buffers) > 0 {
		b.arrive(arrival{failed: buffers})
	}
}

// hasFailed says whether the content of a lease will never be complete.
func (b *Blocks) hasFailed(l *Lease) bool {
	if b.some.Load() {
		b.lockAndApply()
		b.mu.Unlock()
	}
	return l.failed.Load()
}

// Leases returns the session's leases. A lease that has ended may be among them.
func (b *Blocks) Leases() []*Lease {
	b.lockAndApply()
	defer b.mu.Unlock()
	return slices.Collect(b.leases.all())
}

// BeginClose refuses new leases and mappings. It returns the session's leases.
func (b *Blocks) BeginClose() []*Lease {
	b.lockAndApply()
	b.closing = true
	b.mu.Unlock()
	return b.Leases()
}

// Close unmaps all blocks of a session that is being closed and has no leases. Before the connection ends, Close tells the service
// which blocks are unmapped, so that the service can use them again while this process lives.
func (b *Blocks) Close() error {
	b.lockAndApply()
	var errs []error
	var dropped []uint64
	for id, of := range b.blocks {
		err := b.dropLocked(id)
		if err == nil && of.leases == 0 { // the service would refuse the whole list for one block with leases
			dropped = append(dropped, id)
		}
		errs = append(errs, err)
	}
	for id, p := range b.pools {
		errs = append(errs, p.mem.Close())
		delete(b.pools, id)
	}
	b.closed = true
	b.mu.Unlock()
	b.telling.Wait() // the caller ends the connection next
	if err := b.dropped(dropped); err != nil && !errors.Is(err, ErrDisconnected) && !errors.Is(err, ErrClientClosed) {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// Waits counts waits for something, and how long they took.
type Waits struct {
	count atomic.Uint64
	time  atomic.Int64
}

// Over adds a wait that has ended now. `found` reports whether the wait succeeded.
func (w *Waits) Over(began time.Time, found bool) {
	w.time.Add(int64(time.Since(began)))
	if found {
		w.count.Add(1)
	}
}

// Total returns how many waits succeeded, and the time of all waits.
func (w *Waits) Total() (count uint64, total time.Duration) {
	return w.count.Load(), time.Duration(w.time.Load())
}
