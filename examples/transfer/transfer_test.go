package main

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestAnArrayGoesFromGoToPython(t *testing.T) {
	python := rig.Python(t)
	for kind, library := range python.Consumers(t) {
		t.Run(string(kind), func(t *testing.T) {
			service := rig.Serve(t)
			t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
			require.NoError(t, transfer(t.Context(), kind))
			out := python.Run(t, "consumer.py", library)
			assert.Contains(t, out, "float32 21.0")
			if _, err := exec.LookPath("go"); err == nil && kind == bridge.Host {
				out, err := exec.Command("go", "run", "./reader").CombinedOutput()
				require.NoError(t, err, string(out))
				assert.Equal(t, "[2 3] 24\n", string(out))
			}
			service.Idle(t) // the lease of the consumer has ended
		})
	}
}
