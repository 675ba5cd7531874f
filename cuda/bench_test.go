package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/cuda"
)

// BenchmarkStreamQuery measures the time of a driver call in which the driver
// has almost nothing to do.
func BenchmarkStreamQuery(b *testing.B) {
	s := stream(b, context(b))
	for b.Loop() {
		if _, err := s.Query(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAllocAndFree64KiB(b *testing.B) {
	c := context(b)
	s := stream(b, c)
	p := memPool(b, c, cuda.MemPoolSpec{ReleaseThreshold: ^uint64(0)})
	for b.Loop() {
		ptr, err := p.Alloc(64<<10, s)
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Free(ptr, s); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, s.Synchronize())
}

func BenchmarkExportPtr(b *testing.B) {
	c := context(b)
	p := memPool(b, c, cuda.MemPoolSpec{Exportable: true})
	fd, err := p.ExportFD()
	require.NoError(b, err)
	require.NoError(b, unix.Close(fd))
	ptr, err := p.Alloc(64<<10, nil)
	require.NoError(b, err)
	for b.Loop() {
		if _, err := p.ExportPtr(ptr); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, p.Free(ptr, nil))
}

func BenchmarkWriteValue64(b *testing.B) {
	c := context(b)
	needs(b, c.Device().SupportsStreamMemOps)
	s := stream(b, c)
	ptr, err := c.Malloc(64)
	require.NoError(b, err)
	var n uint64
	for b.Loop() {
		n++
		if err := s.WriteValue64(ptr, n); err != nil {
			b.Fatal(err)
		}
		if n%1024 == 0 {
			// The queue of a stream has a limited size. If the queue is full, a
			// call waits. So the benchmark empties the queue while its timer is
			// stopped.
			b.StopTimer()
			require.NoError(b, s.Synchronize())
			b.StartTimer()
		}
	}
	require.NoError(b, s.Synchronize())
	require.NoError(b, c.MFree(ptr))
}
