package kinds

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/seqpacket"
	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

// raw is a session that gives the test the exports of the service. The test can change an export before it imports the
// export.
type raw struct {
	t     *testing.T
	conn  *seqpacket.Conn
	epoch mempool.Epoch
	last  uint32
}

func dialRaw(t *testing.T, s *rig.Service) *raw {
	t.Helper()
	conn, err := seqpacket.Dial(t.Context(), s.Socket)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, conn.Close()) })
	r := &raw{t: t, conn: conn}
	var hello wire.HelloReply
	r.call(&wire.Hello{Versions: []uint64{wire.Version}}, &hello)
	r.epoch = mempool.Epoch(hello.Epoch)
	return r
}

// call makes a request, and returns the files that came with the reply. The files are closed when the test ends.
func (r *raw) call(q wire.Request, into wire.Reply) (files []*os.File) {
	r.t.Helper()
	r.last++
	packet, err := wire.AppendRequest(nil, r.last, q)
	require.NoError(r.t, err)
	require.NoError(r.t, r.conn.Send(packet, nil))
	buf := make([]byte, wire.MaxPacket)
	n, fds, err := r.conn.Recv(buf)
	require.NoError(r.t, err)
	h, err := wire.DecodeHeader(buf[:n])
	require.NoError(r.t, err)
	require.NoError(r.t, h.DecodeReply(into))
	for fd := fds.Next(); fd != nil; fd = fds.Next() {
		f := fd.File("export")
		r.t.Cleanup(func() { _ = f.Close() })
		files = append(files, f)
	}
	return files
}

// pool opens the pool with a name, and returns the pool's export.
func (r *raw) pool(name string) (mempool.PoolInfo, mempool.Export) {
	r.t.Helper()
	var reply wire.PoolReply
	files := r.call(&wire.Open{Name: name}, &reply)
	p := reply.Pool
	info := mempool.PoolInfo{ID: p.ID, Name: p.Name, Kind: mempool.Kind(p.Kind), MaxBytes: p.MaxBytes,
		Device: mempool.DeviceInfo{Ordinal: int(p.DeviceOrdinal), UUID: p.DeviceUUID}}
	return info, mempool.Export{Data: p.Export.Data, Files: files}
}

// block is a block of a pool, with the export of the block.
type block struct {
	id, size uint64
	export   mempool.Export
}

// allocate makes a buffer with a write lease that lasts as long as the session.
func (r *raw) allocate(pool, bytes uint64) block {
	r.t.Helper()
	var reply wire.GrantReply
	files := r.call(&wire.Alloc{Pool: pool, Tensor: wire.Tensor{DType: "uint8", Shape: []uint64{bytes}}}, &reply)
	l := reply.Grant
	require.NotNil(r.t, l.Export)
	return block{l.Block, l.BlockBytes, mempool.Export{Data: l.Export.Data, Files: files}}
}

// imported is a pool that this process has imported, and a block of this pool.
type imported struct {
	raw  *raw
	info mempool.PoolInfo
	pool *mempool.ImportedPool
	block
}

const mib = 1 << 20

// start starts a service with two pools of a kind, "p" and "q", and imports "p". If the machine does not have the kind, start
// skips the test.
func start(t *testing.T, kind mempool.Kind) (*rig.Service, *imported) {
	t.Helper()
	if err := kind.Probe(""); err != nil {
		t.Skip(err)
	}
	s := rig.Serve(t, "--pool", "name=p,max=64MiB,kind="+string(kind), "--pool", "name=q,max=64MiB,kind="+string(kind))
	r := dialRaw(t, s)
	info, x := r.pool("p")
	pool, err := mempool.ImportPool(r.epoch, info, x, "")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	return s, &imported{r, info, pool, r.allocate(info.ID, mib)}
}

// take imports a block, and returns the error. The id, the size and the export of the block may be wrong.
func (i *imported) take(id, size uint64, x mempool.Export) (err error) {
	b, err := i.pool.Block(id, size, &x)
	if err != nil {
		return err
	}
	_, err = b.Memory(true)
	if closed := b.Close(); err == nil {
		err = closed
	}
	return err
}

// works checks that the unchanged block can be imported, and that CUDA still works in this process.
func (i *imported) works(t *testing.T) {
	t.Helper()
	b, err := i.pool.Block(i.id, i.size, &i.export)
	require.NoError(t, err)
	m, err := b.Memory(true)
	require.NoError(t, err)
	require.NoError(t, m.CopyFrom(i.size-4, []byte("fine")))
	text := make([]byte, 4)
	require.NoError(t, m.CopyTo(text, i.size-4))
	require.Equal(t, "fine", string(text))
	require.NoError(t, b.Close())

	d, err := mempool.FindDevice(i.info.Device.UUID)
	require.NoError(t, err)
	ctx, err := d.Retain()
	require.NoError(t, err)
	ptr, err := ctx.Malloc(mib)
	require.NoError(t, err)
	require.NoError(t, ctx.CopyHtoD(ptr, []byte("fine")))
	require.NoError(t, ctx.MFree(ptr))
	require.NoError(t, ctx.Close())
}
