package work

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/cuda/pattern"
)

// mostHeld is the longest time that a gate holds work. After this time, the work continues although the gate is closed. If a call of the
// library waits as long as this, the check fails.
const mostHeld = time.Minute

// Gate holds work in a GPU's stream until the gate is opened.
type Gate struct {
	gpu  *GPU
	word *cuda.Pinned // 0: closed
}

// NewGate makes a closed gate. NewGate also runs, once, each kernel that a check queues while the gate is closed. The reason is that the
// driver loads a kernel at its first run, and that this loading may wait for held kernels.
func (g *GPU) NewGate() (*Gate, error) {
	word, err := g.Context.NewPinned(8)
	if err != nil {
		return nil, err
	}
	clear(word.Bytes())
	_, err = g.Kernels.Verify(g.Stream, word.DevicePtr(), 2, pattern.Masked{})
	err = errors.Join(err, g.Kernels.Hold(g.Stream, word.DevicePtr(), 0), g.Kernels.Spin(g.Stream, 0), g.Stream.Synchronize())
	if err != nil {
		return nil, errors.Join(err, word.Close())
	}
	return &Gate{g, word}, nil
}

// Hold queues a kernel that waits until the gate is open, for at most mostHeld. Then it queues a second kernel that runs for the time
// `takes`.
func (g *Gate) Hold(takes time.Duration) error {
	k, s := g.gpu.Kernels, g.gpu.Stream
	return errors.Join(k.Hold(s, g.word.DevicePtr(), mostHeld), k.Spin(s, takes))
}

// Open opens the gate, so that the held work continues.
func (g *Gate) Open() { binary.NativeEndian.PutUint64(g.word.Bytes(), 1) }

// Close opens the gate, and waits until the stream has done all its work.
func (g *Gate) Close() error {
	g.Open()
	return errors.Join(g.gpu.Stream.Synchronize(), g.word.Close())
}
