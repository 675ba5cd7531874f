package cuda_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestMain(m *testing.M) {
	if role := os.Getenv(roleVariable); role != "" {
		os.Exit(play(role))
	}
	cuda.TraceObjects()
	status := m.Run()
	if left := cuda.OpenObjects(); status == 0 && len(left) != 0 {
		fmt.Fprintln(os.Stderr, "not closed:", left)
		status = 1
	}
	os.Exit(status)
}

// device returns the first GPU. It skips the test if there is none.
func device(t testing.TB) cuda.Device {
	t.Helper()
	if err := cuda.Init(); err != nil {
		t.Skip(err)
	}
	d, err := cuda.DeviceAt(0)
	if err != nil {
		t.Skip(err)
	}
	return d
}

// context returns a context of the first GPU, which is closed when the test ends.
func context(t testing.TB) *cuda.Context {
	t.Helper()
	c, err := device(t).Retain()
	require.NoError(t, err)
	closing(t, c)
	return c
}

func stream(t testing.TB, c *cuda.Context) *cuda.Stream {
	t.Helper()
	s, err := c.NewStream()
	require.NoError(t, err)
	closing(t, s)
	return s
}

func memPool(t testing.TB, c *cuda.Context, spec cuda.MemPoolSpec) *cuda.MemPool {
	t.Helper()
	needs(t, c.Device().SupportsMemPools)
	if spec.Exportable {
		needs(t, c.Device().SupportsPOSIXFDPools)
	}
	p, err := c.NewMemPool(spec)
	require.NoError(t, err)
	closing(t, p)
	return p
}

// needs skips the test if a probe returns false.
func needs(t testing.TB, probe func() (bool, error)) {
	t.Helper()
	ok, err := probe()
	require.NoError(t, err)
	if !ok {
		t.Skip("the device does not support it")
	}
}

func closing(t testing.TB, c interface{ Close() error }) {
	t.Cleanup(func() { require.NoError(t, c.Close()) })
}
