package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestAnExportedFileHasNamesEscapedAndUnchanged(t *testing.T) {
	saved := mempool.Saved{Kind: mempool.Host, Name: "a\u202eb\u009bc\x7fd\u2028e"}
	text, err := fileOf(saved, false)
	require.NoError(t, err)
	assert.Contains(t, string(text), `"a\u202eb\u009bc\u007fd\u2028e"`)
	var back mempool.Saved
	require.NoError(t, json.Unmarshal(text, &back))
	assert.Equal(t, saved.Name, back.Name)
}

func TestAnErrorIsPrintedWithoutControlCharactersOfNames(t *testing.T) {
	var out bytes.Buffer
	report(&out, errors.New("the name a\u202eb\x1b[2J is taken"))
	assert.NotContains(t, out.String(), "\u202e")
	assert.NotContains(t, out.String(), "\x1b")
	assert.Contains(t, out.String(), "is taken\n")
}
