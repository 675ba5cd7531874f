package server

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestEveryRequestOfTheProtocolHasAnOperation(t *testing.T) {
	text, err := os.ReadFile("../../docs/vectors/v1.json")
	require.NoError(t, err)
	var vectors struct {
		Valid []struct{ Direction, Type string }
	}
	require.NoError(t, json.Unmarshal(text, &vectors))
	requests := map[string]bool{}
	for _, v := range vectors.Valid {
		if v.Direction == "request" {
			requests[v.Type] = true
		}
	}
	for name := range operations {
		assert.True(t, requests[name], "%s has no vector", name)
	}
	delete(requests, "hello") // hello is no operation, because it opens the session
	require.NotEmpty(t, requests)
	for name := range requests {
		assert.Contains(t, operations, name)
	}
}
