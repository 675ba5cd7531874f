package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestTwoConsumersSeeEveryFrame(t *testing.T) {
	python := rig.Python(t)
	text, err := os.ReadFile("consumer.py")
	require.NoError(t, err)
	for kind, library := range python.Consumers(t) {
		t.Run(string(kind), func(t *testing.T) {
			service := rig.Serve(t)
			t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
			for range 2 { // the second run uses the pool of the first run
				twoConsumersSeeEveryFrame(t, service, kind, func() *rig.Script { return python.Start(t, string(text), library) })
			}
		})
	}
}

func twoConsumersSeeEveryFrame(t *testing.T, service *rig.Service, kind mempool.Kind, consume func() *rig.Script) {
	t.Helper()
	camera, err := open(t.Context(), kind)
	require.NoError(t, err)
	defer camera.client.Close()
	consumers := []*rig.Script{consume(), consume()}
	for _, consumer := range consumers {
		require.Equal(t, "subscribed", consumer.Line(t))
	}
	require.NoError(t, camera.send(t.Context(), 40, 0))
	var want []string
	for n := range 40 {
		want = append(want, fmt.Sprintf("%d %d %d.0 0", n+1, n, n))
	}
	for _, consumer := range consumers {
		assert.Equal(t, want, strings.Split(consumer.End(t), "\n"))
	}
	service.Idle(t) // the leases of the consumers have ended
}
