package bridge

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// torn publishes the buffer "torn", which a child then leases for writing. The pool has room for three buffers of one page: "torn", and two
// buffers that the child allocates.
func torn(t *testing.T, path string) (*Client, *Pool) {
	t.Helper()
	c := dial(t, path)
	p := createPool(t, c, hostPool("p", 3*4096))
	l := allocate(t, p, 4096)
	publish(t, l, "torn")
	require.NoError(t, l.Release(false))
	_, err := c.Stats(context.Background()) // when the reply comes, the service has handled the release
	require.NoError(t, err)
	return c, p
}

func TestAKilledWorkersLeasesEndAndItsMemoryServesOthers(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c, p := torn(t, r.path)
	ctx := context.Background()
	worker := spawn(t, "hold", r.path, nil)
	require.Equal(t, "holding", worker.says())
	before, err := c.Stats(ctx)
	require.NoError(t, err)
	assert.Equal(t, 3, before.Leases)

	got := make(chan error)
	go func() { // this call waits for the child, which writes the buffer
		_, err := c.Get(ctx, "torn", LeaseOptions{})
		got <- err
	}()
	room := make(chan *Lease)
	go func() { // this call waits for room in the pool
		l, err := p.Allocate(ctx, mempool.Bytes(4096))
		assert.NoError(t, err)
		room <- l
	}()
	worker.kill()
	assert.ErrorIs(t, <-got, ErrProducerDied)
	l := <-room
	require.NotNil(t, l)
	require.NoError(t, l.Release(false))
	after, err := c.Stats(ctx)
	require.NoError(t, err)
	assert.Equal(t, 0, after.Leases)
	assert.Equal(t, 1, after.Sessions)
	_, err = c.TryGet(ctx, "torn", LeaseOptions{})
	assert.ErrorIs(t, err, ErrProducerDied, "for ever")
}

func TestMemoryOfAProcessThatOnlyClosedItsConnectionWaitsForTheProcess(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c, p := torn(t, r.path)
	ctx := context.Background()
	worker := spawn(t, "hold", r.path, nil)
	require.Equal(t, "holding", worker.says())
	worker.tell("close")
	require.Equal(t, "closed", worker.says())
	r.log.Await(t, "kind=session-ended")

	st, err := c.Stats(ctx)
	require.NoError(t, err)
	assert.Zero(t, st.Leases, "its leases have ended")
	assert.EqualValues(t, 2*4096, st.Pools[0].Held, "and what they were on is not to be touched")
	assert.EqualValues(t, 4096, st.Pools[0].Leased, "what was being written has a name still")
	room := make(chan *Lease)
	go func() {
		l, err := p.Allocate(ctx, mempool.Bytes(4096))
		assert.NoError(t, err)
		room <- l
	}()
	st, err = c.Stats(ctx)
	require.NoError(t, err)
	assert.Zero(t, st.Leases)
	worker.kill()
	l := <-room
	require.NotNil(t, l)
	require.NoError(t, l.Release(false))
}

func TestAKilledProcessLosesItsSessionThoughAnotherHasItsSocket(t *testing.T) {
	r := start(t, server.Config{}, unhurried)
	c, p := torn(t, r.path)
	ctx := context.Background()
	life, end, err := os.Pipe()
	require.NoError(t, err)
	defer end.Close() // ends the process that has the socket
	worker := spawn(t, "bequeath", r.path, func(cmd *exec.Cmd) { cmd.ExtraFiles = []*os.File{life} })
	require.NoError(t, life.Close())
	require.Equal(t, "holding", worker.says())
	worker.kill()
	_, err = c.Get(ctx, "torn", LeaseOptions{})
	require.ErrorIs(t, err, ErrProducerDied, "its write lock has ended")
	l, err := p.Allocate(ctx, mempool.Bytes(2*4096))
	require.NoError(t, err, "its memory serves others")
	require.NoError(t, l.Release(false))
}

func TestAnotherProcessReadsWhatThisOnePublished(t *testing.T) {
	_, path := serve(t, server.Config{})
	reader := spawn(t, "read", path, nil)
	p := createPool(t, dial(t, path), hostPool("p", 4096))
	l := allocate(t, p, 5)
	require.NoError(t, l.CopyFrom(context.Background(), 0, []byte("hello")))
	publish(t, l, "greeting")
	assert.Equal(t, "hello", reader.says())
}

// nobody is the id of a user that a child can run as.
const nobody = 65534

// asNobody makes children run as the user nobody, from a copy of the test binary that this user may run.
func asNobody(t *testing.T) func(*exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can start a process of another user")
	}
	exe, err := os.Executable()
	require.NoError(t, err)
	text, err := os.ReadFile(exe)
	require.NoError(t, err)
	path := filepath.Join(openDir(t), "child")
	require.NoError(t, os.WriteFile(path, text, 0o755))
	counts := openDir(t) // a folder for the coverage data of the child, if the test run measures coverage
	require.NoError(t, os.Chmod(counts, 0o777))
	return func(cmd *exec.Cmd) {
		cmd.Env = append(cmd.Env, "GOCOVERDIR="+counts)
		cmd.Path, cmd.Args = path, []string{path}
		cmd.Dir = "/"
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	}
}

func TestAnotherUserReachesOnlyWhatItIsGiven(t *testing.T) {
	become := asNobody(t)
	l := unhurried
	svc := service.New(service.Config{})
	defer svc.Close()
	path := filepath.Join(openDir(t), "s")
	srv, err := server.Listen(path, svc, server.Config{Mode: 0o666, Limits: &l})
	require.NoError(t, err)
	defer srv.Close()
	c, err := Dial(context.Background(), path)
	require.NoError(t, err)
	defer c.Close()
	createPool(t, c, hostPool("private", 4096))
	shared := hostPool("shared", 4096)
	shared.Access.GIDs = []uint32{nobody}
	createPool(t, c, shared)

	visitor := spawn(t, "visit", path, become)
	assert.Equal(t, "dial: ok", visitor.says())
	assert.Equal(t, "private: not found", visitor.says())
	assert.Equal(t, "shared: ok", visitor.says())
	assert.Equal(t, "create: access denied", visitor.says())
	assert.Equal(t, "end: access denied", visitor.says())
	assert.Equal(t, "events: pool-made shared session-began ", visitor.says())
}

func TestTheOwnerListsAndEndsTheSessionsOfAUserWhoHasTakenAll(t *testing.T) {
	become := asNobody(t)
	l := unhurried
	svc := service.New(service.Config{})
	defer svc.Close()
	path := filepath.Join(openDir(t), "s")
	srv, err := server.Listen(path, svc, server.Config{Mode: 0o666, MaxSessions: 200, MaxWaits: 200, Limits: &l})
	require.NoError(t, err)
	defer srv.Close()
	visitors := spawn(t, "crowd", path, become)
	require.Equal(t, "199 199", visitors.says(), "all but one of 200 sessions and of 200 requests that wait")
	ctx := context.Background()
	c, err := Dial(ctx, path)
	require.NoError(t, err)
	defer c.Close()
	_, err = Dial(ctx, path)
	require.ErrorIs(t, err, ErrLimit, "the reserve is one session")
	var theirs []uint64
	for s, err := range c.Sessions(ctx) {
		require.NoError(t, err)
		if s.UID == nobody {
			theirs = append(theirs, s.ID)
		}
	}
	require.Len(t, theirs, 199)
	for _, id := range theirs {
		require.NoError(t, c.EndSession(ctx, id))
	}
	assert.Equal(t, "ended", visitors.says())
	visitors.tell("go")
	require.Eventually(t, func() bool {
		next, err := Dial(ctx, path)
		return err == nil && next.Close() == nil
	}, patience, time.Millisecond, "the service has sessions again")
}

func TestAUserWhoMayNotConnectIsToldSo(t *testing.T) {
	for _, room := range []int{1, 0} { // how many such clients at a time get an answer to hello: one, or none
		t.Run(strconv.Itoa(room), func(t *testing.T) {
			become := asNobody(t)
			l := unhurried
			l.Denied = room
			svc := service.New(service.Config{})
			defer svc.Close()
			path := filepath.Join(openDir(t), "s")
			srv, err := server.Listen(path, svc, server.Config{Mode: 0o666, MayConnect: func(p mempool.Peer) bool { return p.UID != nobody }, Limits: &l})
			require.NoError(t, err)
			defer srv.Close()
			assert.Equal(t, "dial: access denied", spawn(t, "visit", path, become).says())
			dial(t, path)
		})
	}
}

func TestASocketThatAnotherUserMayNotOpenIsDenied(t *testing.T) {
	become := asNobody(t)
	svc := service.New(service.Config{})
	defer svc.Close()
	path := filepath.Join(openDir(t), "s")
	srv, err := server.Listen(path, svc, server.Config{})
	require.NoError(t, err)
	defer srv.Close()
	assert.Equal(t, "dial: access denied", spawn(t, "visit", path, become).says())
	advice := spawn(t, "complain", path, become).says()
	assert.Contains(t, advice, "--mode 0660")
	assert.Contains(t, advice, fmt.Sprintf("uid=%d", nobody))
}
