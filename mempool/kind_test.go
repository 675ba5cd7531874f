package mempool

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/mempool/hostmem"
)

// fake is a kind whose Create fails with fakeFault.
const fake Kind = "fake"

var fakeFault error

func init() {
	Register(Backend{
		Kind:   fake,
		Probe:  func(string) error { return nil },
		Create: func(PoolSpec, *hostmem.Memory) (Backing, error) { return nil, fakeFault },
	})
}

func TestKindsAreThoseOfTheRegistry(t *testing.T) {
	assert.Equal(t, []Kind{Device, VMM, Legacy, Pinned, Host, fake}, Kinds())
	assert.NoError(t, fake.Probe("anything"))
	assert.ErrorIs(t, Kind("tape").Probe(""), ErrInvalid)
}

func TestMemoryOfAPoolCanBeMadeWithoutThePool(t *testing.T) {
	backing, err := NewBacking(PoolSpec{Name: "p", Kind: Host, MaxBytes: 1 << 20}, hostmem.New())
	require.NoError(t, err)
	mem, err := backing.Allocate(t.Context(), backing.Granularity())
	require.NoError(t, err)
	_, err = mem.Export()
	assert.NoError(t, err)
	require.NoError(t, mem.Free())
	assert.NoError(t, backing.Close())
	for _, spec := range []PoolSpec{{Kind: Host, MaxBytes: 1}, {Name: "p", Kind: "tape", MaxBytes: 1}, {Name: "p", Kind: Host}} {
		_, err := NewBacking(spec, hostmem.New())
		assert.ErrorIs(t, err, ErrInvalid, "%+v", spec)
	}
}

func TestWhereThereIsNoGPUAnErrorSaysWhatToDoWithoutOne(t *testing.T) {
	spec := PoolSpec{Name: "p", Kind: fake, MaxBytes: 512}
	for _, missing := range []error{cuda.ErrNoDriver, cuda.ErrNoDevice} {
		fakeFault = deviceError("find a GPU", missing)
		_, err := NewBacking(spec, hostmem.New())
		require.ErrorIs(t, err, ErrUnavailable)
		require.ErrorIs(t, err, missing)
		assert.ErrorContains(t, err, "; without a GPU use kind \"host\", and `poolsvc doctor` says what is missing")
	}
	fakeFault = deviceError("make a memory pool", cuda.ErrNotSupported)
	_, err := NewBacking(spec, hostmem.New())
	require.ErrorIs(t, err, ErrUnavailable)
	assert.NotContains(t, err.Error(), "without a GPU")
}

func TestADeviceThatIsNoneIsATypedError(t *testing.T) {
	err := Device.Probe("no such device")
	if err == nil {
		t.Fatal("it was found")
	}
	assert.Condition(t, func() bool { return errorsIsAny(err, ErrInvalid, ErrUnavailable) }, "%v", err)
	_, err = newDeviceBacking(PoolSpec{Name: "p", Kind: Device, Device: "no such device", MaxBytes: 1}, hostmem.New())
	assert.Condition(t, func() bool { return errorsIsAny(err, ErrInvalid, ErrUnavailable) }, "%v", err)
}

func errorsIsAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}
