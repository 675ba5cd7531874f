package service

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// everybodys are the fields of Service and of its ledger that have the things of all users.
var everybodys = map[string]bool{"Pools": true, "PoolNames": true, "Sessions": true, "Ended": true, "Blocks": true, "Buffers": true, "Names": true,
	"Leases": true, "Timelines": true, "pools": true, "sessions": true, "blocks": true, "timelines": true, "all": true, "Channels": true, "ChannelNames": true}

// ofSessions are the types whose methods carry out requests of sessions.
var ofSessions = map[string]bool{"Session": true, "View": true, "Channel": true, "Member": true, "Lease": true, "channels": true, "pools": true, "Answer": true}

// A request names things by ids and names. The test reads the package's source: methods of a session look up such things only as an argument
// of Find or Claim, which hide what the session may not see.
func TestSessionsLookUpEverybodysThingsOnlyThroughFind(t *testing.T) {
	files, err := filepath.Glob("*.go")
	require.NoError(t, err)
	if len(files) == 0 {
		t.Skip("the source is not here: this is a test of the source")
	}
	hiding := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		set := token.NewFileSet()
		file, err := parser.ParseFile(set, path, nil, 0)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || f.Body == nil || f.Name.Name == "of" { // of gets a record that is found already
				continue
			}
			of := f.Recv.List[0].Type
			if pointer, ok := of.(*ast.StarExpr); ok {
				of = pointer.X
			}
			if name, ok := of.(*ast.Ident); !ok || !ofSessions[name.Name] {
				continue
			}
			hides, stores := make(map[ast.Expr]bool), make(map[ast.Expr]bool)
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if by, ok := n.Fun.(*ast.SelectorExpr); ok && (by.Sel.Name == "Find" || by.Sel.Name == "Claim") && len(n.Args) > 1 {
						hides[n.Args[len(n.Args)-1]] = true
					}
				case *ast.AssignStmt:
					for _, left := range n.Lhs {
						stores[left] = true
					}
				}
				return true
			})
			ast.Inspect(f.Body, func(n ast.Node) bool {
				var looked ast.Expr
				switch n := n.(type) {
				case *ast.IndexExpr:
					looked = n.X
				case *ast.CallExpr:
					if get, ok := n.Fun.(*ast.SelectorExpr); ok && get.Sel.Name == "Get" {
						looked = get.X
					}
				}
				of, ok := looked.(*ast.SelectorExpr)
				if !ok || !everybodys[of.Sel.Name] {
					return true
				}
				if own, ok := of.X.(*ast.SelectorExpr); ok && own.Sel.Name == "rec" {
					return true // the session's own leases and names
				}
				if hides[n.(ast.Expr)] {
					hiding++
				} else if !stores[n.(ast.Expr)] {
					assert.Fail(t, "a request would learn what it may not see", "%s: %s: use find", set.Position(n.Pos()), f.Name.Name)
				}
				return true
			})
		}
	}
	assert.Greater(t, hiding, 5, "the test must recognize the look-ups")
}

func TestWhatASessionWaitsForInAHiddenPoolIsHidden(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		maker := open(t, svc)
		shared := createPool(t, maker, mempool.PoolSpec{Name: "shared", Kind: fake, MaxBytes: 1024, Access: mempool.Access{UIDs: []uint32{7, 8}}})
		secret := createPool(t, maker, mempool.PoolSpec{Name: "payroll", Kind: fake, MaxBytes: 512, Access: mempool.Access{UIDs: []uint32{7}}})
		holder, viewer := openClient(t, svc, mempool.Peer{UID: 7}), openClient(t, svc, mempool.Peer{UID: 8})
		allocate(t, holder.Session, shared, 512)
		full := allocate(t, holder.Session, secret, 512)
		var work sync.WaitGroup
		work.Go(func() {
			_, err := holder.allocate(t.Context(), secret.rec.Info.ID, mempool.Bytes(512), time.Hour)
			assert.NoError(t, err)
		})
		synctest.Wait()
		for _, c := range []struct {
			s     *Session
			waits string
		}{{holder.Session, `512 bytes in pool "payroll"`}, {maker, `512 bytes in pool "payroll"`}, {viewer.Session, ""}} {
			page, err := c.s.View().Leases("", 1, nil)
			require.NoError(t, err)
			require.Len(t, page.Entries, 1)
			assert.Equal(t, c.waits, page.Entries[0].WaitsFor)
			assert.Equal(t, c.waits == "", page.Entries[0].Since.IsZero())
		}
		release(t, full)
		work.Wait()
	})
}

func TestAWriterThatDiesIsToldOfInEachPoolAlone(t *testing.T) {
	svc := newService(t)
	maker, writer := open(t, svc), openClient(t, svc, mempool.Peer{UID: 7})
	for name, uids := range map[string][]uint32{"shared": {7, 8}, "payroll": {7}} {
		p := createPool(t, maker, mempool.PoolSpec{Name: name, Kind: fake, MaxBytes: 1024, Access: mempool.Access{UIDs: uids}})
		for _, number := range "12" {
			l := allocate(t, writer.Session, p, 512)
			publish(t, l, mempool.Publication{Name: name + string(number), Keep: true})
			release(t, l)
			_, err := writer.Get(t.Context(), name+string(number), true, Known{}, 0)
			require.NoError(t, err)
		}
	}
	writer.End(mempool.SessionLost, "", nil)
	page, err := openClient(t, svc, mempool.Peer{UID: 8}).View().Events(t.Context(), 0, 64, 0)
	require.NoError(t, err)
	died := slices.DeleteFunc(page.Events, func(e mempool.HistoryEvent) bool { return e.Kind != mempool.WriterDied })
	require.Len(t, died, 1)
	assert.Equal(t, "shared", died[0].Pool)
	assert.EqualValues(t, 1024, died[0].Bytes)
	assert.Contains(t, died[0].Text, "2 buffers (1024 bytes)")
}

func TestANameThatIsHiddenIsTakenAllTheSame(t *testing.T) {
	svc := New(Config{MayCreate: func(mempool.Peer) bool { return true }})
	t.Cleanup(svc.Close)
	spec := mempool.PoolSpec{Name: "payroll", Kind: fake, MaxBytes: 512}
	createPool(t, openClient(t, svc, mempool.Peer{UID: 7}).Session, spec)
	other := openClient(t, svc, mempool.Peer{UID: 8})
	for _, create := range []func() error{
		func() error { _, err := other.CreatePool(spec); return err },
		func() error { _, err := other.EnsurePool(t.Context(), spec); return err },
	} {
		assert.EqualError(t, create(), `already exists: the pool name "payroll" is taken: choose another name`)
	}
}

func TestRootSeesWhatTheServicesUserSees(t *testing.T) {
	svc := newService(t)
	svc.uid = 12
	createPool(t, openClient(t, svc, mempool.Peer{UID: 12}).Session, mempool.PoolSpec{Name: "p", Kind: fake, MaxBytes: 512, Access: mempool.Access{UIDs: []uint32{7}}})
	for uid, sees := range map[uint32]int{0: 1, 12: 1, 13: 0} {
		s := openClient(t, svc, mempool.Peer{UID: uid})
		assert.Len(t, s.View().Stats().Pools, sees, "user %d", uid)
		_, err := s.MayEnd(s.ID() - 1)
		assert.Equal(t, sees == 0, err != nil, "user %d: %v", uid, err)
	}
}
