package bench

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/server"
	"github.com/poolbridge/poolbridge/mempool"
	state "github.com/poolbridge/poolbridge/mempool/service"
)

// idler is a consumer that takes no frames.
type idler struct{ broken error }

func (idler) begin(context.Context, string) error { return nil }
func (c idler) ready() error                      { return c.broken }
func (idler) stamps() ([]time.Duration, error)    { return nil, nil }
func (idler) stop() error                         { return nil }

func TestAMeasurementThatFailsLeavesNoChannelOpenThatConsumersWouldWaitFor(t *testing.T) {
	svc := state.New(state.Config{})
	t.Cleanup(svc.Close)
	socket := filepath.Join(t.TempDir(), "s.sock")
	srv, err := server.Listen(socket, svc, server.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srv.Close()) })
	ctx := t.Context()
	src, err := dial(ctx, socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, src.client.Close()) })
	s := sceneOf(mempool.Host, "")
	require.NoError(t, src.makePool(ctx, s.poolSpec(1<<20)))
	for name, measure := range map[string]func(gone *worker) error{
		"a consumer fails": func(*worker) error {
			_, err := s.streamOnce(ctx, src, []consumer{idler{errors.New("broken")}}, 0)
			return err
		},
		"a producer in Python fails": func(gone *worker) error {
			_, err := s.publishBy(ctx, src, gone, []consumer{idler{}}, 0)
			return err
		},
		"a transfer fails": func(gone *worker) error {
			_, err := s.transferTo(ctx, src, gone, 100, "c", false)
			return err
		},
		"there is no room": func(gone *worker) error {
			_, err := s.transferTo(ctx, src, gone, 1<<40, "d", false)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			gone, err := startWorker(ctx, "true", socket)
			require.NoError(t, err)
			assert.Error(t, measure(gone))
			_ = gone.stop()
			for ch, err := range src.client.Channels(ctx) {
				require.NoError(t, err)
				assert.True(t, ch.Closed, ch.Name)
			}
		})
	}
}

func TestAWorkerThatWaitsForANameEndsWithItsMeasurement(t *testing.T) {
	svc := state.New(state.Config{})
	t.Cleanup(svc.Close)
	socket := filepath.Join(t.TempDir(), "s.sock")
	srv, err := server.Listen(socket, svc, server.Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, srv.Close()) })
	ctx := t.Context()
	src, err := dial(ctx, socket)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, src.client.Close()) })
	s := sceneOf(mempool.Host, "")
	s.Time = time.Minute
	require.NoError(t, src.makePool(ctx, s.poolSpec(1<<20)))
	require.NoError(t, transferOne(ctx, src, "taken 0", mempool.Bytes(1), 0))

	waits := filepath.Join(t.TempDir(), "waits") // a worker that acknowledges once and then waits for ever
	require.NoError(t, os.WriteFile(waits, []byte("#!/bin/sh\nprintf '\\001' >&3\nexec tail -f /dev/null\n"), 0o700))
	w, err := startWorker(ctx, waits, socket)
	require.NoError(t, err)
	_, err = s.transferByName(ctx, src, w, 100, "taken ")
	require.ErrorIs(t, err, mempool.ErrExists)
	require.NoError(t, w.abandon())
	assert.NotNil(t, w.Cmd.ProcessState)
}

func TestALastCopyThatFailsIsAnError(t *testing.T) {
	noRoom := errors.New("no room")
	assert.ErrorIs(t, finishCopies(t.Context(), func() (*bridge.Lease, error) { return nil, noRoom }), noRoom)
}
