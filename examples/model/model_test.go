// Package model tests the example in this folder: holder.py and reader.py.
package model

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestFourReadersShareWhatOneHolds(t *testing.T) {
	python := rig.Python(t)
	holderText, err := os.ReadFile("holder.py")
	require.NoError(t, err)
	readerText, err := os.ReadFile("reader.py")
	require.NoError(t, err)
	for kind, library := range python.Consumers(t) {
		t.Run(string(kind), func(t *testing.T) {
			service := rig.Serve(t)
			t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
			holder := python.Start(t, string(holderText), library)
			require.Equal(t, "holding", holder.Line(t))
			held := service.Stats(t).Pools[0].Leased
			var readers []*rig.Script
			for range 4 {
				reader := python.Start(t, string(readerText), library)
				require.Equal(t, "{'embed': 1.0, 'hidden': 2.0, 'out': 3.0}", reader.Line(t))
				require.Equal(t, "reading", reader.Line(t))
				readers = append(readers, reader)
			}
			assert.Equal(t, held, service.Stats(t).Pools[0].Leased, "four readers need no more memory than none")
			assert.Empty(t, holder.End(t))
			for _, reader := range readers {
				assert.Equal(t, "24576.0", reader.End(t), "the memory stays when its holder is gone")
			}
			service.Idle(t)
			holder = python.Start(t, string(holderText), library)
			require.Equal(t, "holding", holder.Line(t), "a second one uses the pool of the first")
			assert.Empty(t, holder.End(t))
		})
	}
}
