// Package pipeline tests the example in this folder: pipeline.py.
package pipeline

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestEveryArrayPassesThreeStages(t *testing.T) {
	python := rig.Python(t)
	text, err := os.ReadFile("pipeline.py")
	require.NoError(t, err)
	for kind, library := range python.Consumers(t) {
		t.Run(string(kind), func(t *testing.T) {
			service := rig.Serve(t)
			t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
			for range 2 { // the second run uses the pool of the first run
				sink := python.Start(t, string(text), "sink", library)
				scale := python.Start(t, string(text), "scale", library)
				source := python.Start(t, string(text), "source", library)
				assert.Equal(t, "2450.0", sink.End(t), "twice the sum of 0 to 49")
				assert.Empty(t, scale.End(t))
				assert.Empty(t, source.End(t))
				service.Idle(t)
			}
		})
	}
}
