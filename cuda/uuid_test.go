package cuda_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/cuda"
)

const someUUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"

func TestUUIDsAreReadAsTheyAreWritten(t *testing.T) {
	u, err := cuda.ParseUUID(someUUID)
	require.NoError(t, err)
	assert.Equal(t, cuda.UUID{0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}, u)
	assert.Equal(t, someUUID, u.String())
	for _, same := range []string{someUUID[4:], "GPU-00112233-4455-6677-8899-AABBCCDDEEFF", "MIG-" + someUUID[4:]} {
		v, err := cuda.ParseUUID(same)
		require.NoError(t, err)
		assert.Equal(t, u, v)
	}
}

func TestWhatIsNoUUIDIsRefused(t *testing.T) {
	for _, s := range []string{"", "GPU-", "GPU-0011", "GPU-00112233-4455-6677-8899-aabbccddeefg", "GPU-00112233+4455-6677-8899-aabbccddeeff", "0"} {
		_, err := cuda.ParseUUID(s)
		assert.ErrorIs(t, err, cuda.ErrInvalidValue, s)
	}
}

func TestUUIDsAreTextInJSON(t *testing.T) {
	u, err := cuda.ParseUUID(someUUID)
	require.NoError(t, err)
	b, err := json.Marshal(u)
	require.NoError(t, err)
	assert.Equal(t, `"`+someUUID+`"`, string(b))
	var v cuda.UUID
	require.NoError(t, json.Unmarshal(b, &v))
	assert.Equal(t, u, v)
}

func FuzzParseUUID(f *testing.F) {
	f.Add(someUUID)
	f.Fuzz(func(t *testing.T, s string) {
		u, err := cuda.ParseUUID(s)
		if err != nil {
			return
		}
		v, err := cuda.ParseUUID(u.String())
		require.NoError(t, err)
		assert.Equal(t, u, v)
	})
}
