package display

import (
	"bytes"
	"encoding/json"
	"testing"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTextsOfClientsAreSafeOnATerminalAndJSONKeepsThem(t *testing.T) {
	hostile := "a\u202eb\u2028c\u009bd\u007fe\U000e0001f größe"
	var text bytes.Buffer
	_, err := Safe(&text).Write([]byte(hostile + "\n"))
	require.NoError(t, err)
	assert.Equal(t, "a?b?c?d?e?f größe\n", text.String())
	var out bytes.Buffer
	require.NoError(t, json.NewEncoder(SafeJSON(&out)).Encode(hostile))
	for _, r := range out.String() {
		assert.True(t, unicode.IsPrint(r) || r == '\n', "%U", r)
	}
	var back string
	require.NoError(t, json.Unmarshal(out.Bytes(), &back))
	assert.Equal(t, hostile, back)
}
