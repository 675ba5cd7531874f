package service

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

// published makes a buffer with the name x and without a lease.
func published(t testing.TB, s *Session, p *Pool) mempool.Grant {
	t.Helper()
	l := allocate(t, s, p, 1)
	require.NoError(t, l.Publish(mempool.Publication{Name: "x"}))
	release(t, l)
	return l.Grant()
}

func TestAWriterExcludesEverybodyAndReadersOnlyWriters(t *testing.T) {
	svc := newService(t)
	s, other := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 1024)
	ctx := context.Background()

	w := allocate(t, s, p, 1)
	info := w.Grant()
	for _, write := range []bool{false, true} {
		_, err := other.leaseOf(ctx, info.Buffer, info.Generation, write, 0)
		assert.ErrorIs(t, err, mempool.ErrBusy)
	}
	require.NoError(t, w.Publish(mempool.Publication{Name: "x"}))
	r, err := other.getLease(ctx, "x", false, 0)
	require.NoError(t, err)
	_, err = other.getLease(ctx, "x", true, 0)
	assert.ErrorIs(t, err, mempool.ErrBusy, "two readers are there")
	release(t, w)
	release(t, r)
	w, err = other.getLease(ctx, "x", true, 0)
	require.NoError(t, err)
	_, err = s.getLease(ctx, "x", false, 0)
	assert.ErrorIs(t, err, mempool.ErrBusy)
	release(t, w)
	_, err = s.getLease(ctx, "x", false, 0)
	assert.NoError(t, err, "the content counts as complete")
	checkBooks(t, svc)
}

func TestLeasesThatConflictWaitForEachOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s, other := open(t, svc), open(t, svc)
		p, _ := fakePool(t, s, 1024)
		published(t, s, p)
		ctx := context.Background()
		r, err := s.getLease(ctx, "x", false, 0)
		require.NoError(t, err)
		got := make(chan Lease)
		get := func(write bool) {
			l, err := other.getLease(ctx, "x", write, patience)
			assert.NoError(t, err)
			got <- l
		}
		go get(true)
		synctest.Wait()
		release(t, r)
		w := <-got
		go get(false)
		go get(false)
		synctest.Wait()
		release(t, w)
		release(t, <-got)
		release(t, <-got)
	})
}

func TestAWaitForABusyBufferEndsAsBusy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		info := allocate(t, s, p, 1).Grant()
		_, err := s.leaseOf(context.Background(), info.Buffer, info.Generation, false, patience)
		assert.ErrorIs(t, err, mempool.ErrBusy)
		assert.NotErrorIs(t, err, mempool.ErrTimeout)
	})
}

func TestAWaitEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		info := allocate(t, s, p, 1).Grant()
		why := errors.New("enough")
		ctx, cancel := context.WithCancelCause(context.Background())
		ended := make(chan error)
		go func() {
			_, err := s.leaseOf(ctx, info.Buffer, info.Generation, false, patience)
			ended <- err
		}()
		synctest.Wait()
		cancel(why)
		assert.Equal(t, why, <-ended)
	})
}

func TestAWaitForABufferThatGoesAwayIsStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := newService(t)
		s := open(t, svc)
		p, _ := fakePool(t, s, 1024)
		l := allocate(t, s, p, 1)
		info := l.Grant()
		ended := make(chan error)
		go func() {
			_, err := s.leaseOf(context.Background(), info.Buffer, info.Generation, false, patience)
			ended <- err
		}()
		synctest.Wait()
		release(t, l)
		assert.ErrorIs(t, <-ended, mempool.ErrStale)
	})
}

func TestWhatWasNotFinishedHasFailedForEverybody(t *testing.T) {
	for how, end := range map[string]func(*Session, Lease){
		"released incomplete": func(_ *Session, l Lease) { _ = l.Release(true) },
		"session ended":       func(s *Session, _ Lease) { s.End(mempool.SessionLeft, "", nil) },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				svc := newService(t)
				s, writer := open(t, svc), open(t, svc)
				p, _ := fakePool(t, s, 1024)
				info := published(t, s, p)
				w, err := writer.getLease(context.Background(), "x", true, 0)
				require.NoError(t, err)
				ended := make(chan error)
				go func() {
					_, err := s.getLease(context.Background(), "x", false, patience)
					ended <- err
				}()
				synctest.Wait()
				end(writer, w)
				assert.ErrorIs(t, <-ended, mempool.ErrProducerDied)
				_, err = s.leaseOf(context.Background(), info.Buffer, info.Generation, true, patience)
				assert.ErrorIs(t, err, mempool.ErrProducerDied, "for ever")
				require.NoError(t, s.Unpublish("x"))
				assert.Zero(t, svc.Stats().Buffers)
				checkBooks(t, svc)
			})
		})
	}
}

func TestAReaderThatDiesFailsNothing(t *testing.T) {
	svc := newService(t)
	s, reader := open(t, svc), open(t, svc)
	p, _ := fakePool(t, s, 1024)
	published(t, s, p)
	_, err := reader.getLease(context.Background(), "x", false, 0)
	require.NoError(t, err)
	reader.End(mempool.SessionLeft, "", nil)
	_, err = s.getLease(context.Background(), "x", true, 0)
	assert.NoError(t, err)
}
