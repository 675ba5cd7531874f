package cuda

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda/internal/driver"
)

func TestAThreadIsLeftWithTheContextThatItHad(t *testing.T) {
	if err := Init(); err != nil {
		t.Skip(err)
	}
	d, err := DeviceAt(0)
	if err != nil {
		t.Skip(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	current := func() uintptr {
		t.Helper()
		ctx, st := driver.Current()
		require.Zero(t, st)
		return ctx
	}
	before := current()
	c, err := d.Retain()
	require.NoError(t, err)
	defer c.Close()
	require.Equal(t, before, current(), "Retain")
	s, err := c.NewStream()
	require.NoError(t, err)
	require.Equal(t, before, current(), "a call that succeeds")
	require.Error(t, s.WriteValue64(1, 1))
	require.Equal(t, before, current(), "a call that fails")
	require.NoError(t, s.Close())
	require.Equal(t, before, current(), "Close")
}
