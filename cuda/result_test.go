package cuda_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

func TestResultsHaveNamesWithoutADriver(t *testing.T) {
	assert.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY", cuda.ErrOutOfMemory.Name())
	assert.Equal(t, "CUDA_ERROR_OUT_OF_MEMORY: out of memory", cuda.ErrOutOfMemory.Error())
	assert.Equal(t, "NO_DRIVER: no CUDA driver", cuda.ErrNoDriver.Error())
	assert.Equal(t, "CUDA_ERROR_31337", cuda.Result(31337).Error(), "a result of a later driver")
}

func TestResultNumbersAreTheDrivers(t *testing.T) {
	for r, n := range map[cuda.Result]int{
		cuda.ErrInvalidValue: 1, cuda.ErrOutOfMemory: 2, cuda.ErrMapFailed: 205, cuda.ErrInvalidHandle: 400,
		cuda.ErrNotReady: 600, cuda.ErrIllegalAddress: 700, cuda.ErrNotPermitted: 800,
		cuda.ErrNotSupported: 801, cuda.ErrUnknown: 999,
	} {
		assert.EqualValues(t, n, r, r.Name())
	}
}

func TestErrorsAreFoundByTheirResult(t *testing.T) {
	err := fmt.Errorf("making a pool: %w", &cuda.Error{Op: "cuMemPoolCreate", Device: 1, Result: cuda.ErrOutOfMemory})
	assert.ErrorIs(t, err, cuda.ErrOutOfMemory)
	assert.NotErrorIs(t, err, cuda.ErrInvalidValue)
	var e *cuda.Error
	require.True(t, errors.As(err, &e))
	assert.Equal(t, 1, e.Device)
	var r cuda.Result
	require.True(t, errors.As(err, &r))
	assert.Equal(t, cuda.ErrOutOfMemory, r)
	assert.Equal(t, "making a pool: cuda: cuMemPoolCreate on device 1: CUDA_ERROR_OUT_OF_MEMORY: out of memory", err.Error())
}

func TestErrorsOfNoDeviceDoNotNameOne(t *testing.T) {
	err := &cuda.Error{Op: "dlopen", Device: -1, Result: cuda.ErrNoDriver, Detail: "no such file"}
	assert.Equal(t, "cuda: dlopen: NO_DRIVER: no CUDA driver (no such file)", err.Error())
}

func TestOnlyErrorsThatRuinTheContextAreSticky(t *testing.T) {
	assert.True(t, cuda.ErrIllegalAddress.Sticky())
	assert.False(t, cuda.ErrOutOfMemory.Sticky())
	assert.False(t, cuda.ErrNotReady.Sticky())
}

func TestDescriptionsAreShort(t *testing.T) {
	for n := range cuda.Result(1000) {
		d := n.Description()
		assert.Less(t, len(d), 60)
		assert.Equal(t, d, strings.TrimSpace(d))
	}
}
