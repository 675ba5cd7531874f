package cuda_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

// scalePTX is a kernel that computes out[i] = i * factor + bias. All its
// numbers are 32-bit integers, except bias, which is a 64-bit integer.
const scalePTX = `
.version 7.0
.target sm_70
.address_size 64

.visible .entry scale(.param .u64 out, .param .u32 n, .param .u32 factor, .param .u64 bias)
{
	.reg .pred %p;
	.reg .b32 %r<8>;
	.reg .b64 %d<6>;
	ld.param.u64 %d1, [out];
	ld.param.u32 %r1, [n];
	ld.param.u32 %r2, [factor];
	ld.param.u64 %d2, [bias];
	mov.u32 %r3, %ctaid.x;
	mov.u32 %r4, %ntid.x;
	mov.u32 %r5, %tid.x;
	mad.lo.u32 %r6, %r3, %r4, %r5;
	setp.ge.u32 %p, %r6, %r1;
	@%p bra done;
	cvt.u32.u64 %r7, %d2;
	mad.lo.u32 %r7, %r6, %r2, %r7;
	cvta.to.global.u64 %d3, %d1;
	mul.wide.u32 %d4, %r6, 4;
	add.u64 %d5, %d3, %d4;
	st.global.u32 [%d5], %r7;
done:
	ret;
}
`

// kernels loads the PTX code ptx. It skips the test if the driver cannot run
// kernels. The simulated driver cannot run kernels.
func kernels(t *testing.T, c *cuda.Context, ptx string) *cuda.Module {
	t.Helper()
	m, err := c.LoadModule([]byte(ptx))
	if errors.Is(err, cuda.ErrNotSupported) || errors.Is(err, cuda.ErrSymbolNotFound) {
		t.Skip(err)
	}
	require.NoError(t, err)
	closing(t, m)
	return m
}

func TestAKernelGetsItsArguments(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	m := kernels(t, c, scalePTX)
	f, err := m.Function("scale")
	require.NoError(t, err)
	out, err := c.NewPinned(4 * 1000)
	require.NoError(t, err)
	defer out.Close()

	err = s.Launch(f, cuda.Dim3{X: 8}, cuda.Dim3{X: 128}, 0, out.DevicePtr(), uint32(1000), int32(3), uint64(5))
	if errors.Is(err, cuda.ErrNotSupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.NoError(t, s.Synchronize())
	for i := range 1000 {
		b := out.Bytes()[4*i:]
		require.EqualValues(t, 3*i+5, uint32(b[0])|uint32(b[1])<<8|uint32(b[2])<<16|uint32(b[3])<<24)
	}
}

func TestAnArgumentOfAnotherTypeIsRefused(t *testing.T) {
	c := context(t)
	s := stream(t, c)
	m := kernels(t, c, scalePTX)
	f, err := m.Function("scale")
	require.NoError(t, err)
	require.ErrorIs(t, s.Launch(f, cuda.Dim3{}, cuda.Dim3{}, 0, 1), cuda.ErrInvalidValue, "an int has no width that a kernel could declare")
	require.ErrorIs(t, s.Launch(f, cuda.Dim3{}, cuda.Dim3{}, 0, make([]any, 33)...), cuda.ErrInvalidValue)
	_, err = m.Function("nothing")
	require.ErrorIs(t, err, cuda.ErrNotFound)
}

func TestTheCompilersWordsComeWithTheError(t *testing.T) {
	c := context(t)
	kernels(t, c, scalePTX) // skips the test if the driver has no compiler
	_, err := c.LoadModule([]byte(".version 7.0\n.target sm_70\n.address_size 64\nnonsense"))
	var e *cuda.Error
	require.True(t, errors.As(err, &e), "%v", err)
	assert.Equal(t, cuda.ErrInvalidPTX, e.Result)
	assert.NotEmpty(t, e.Detail)
}
