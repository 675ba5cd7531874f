package main

import (
	"fmt"
	"io"
	"net/http"
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

func TestAPageShowsWhatTheDetectorFound(t *testing.T) {
	python := rig.Python(t)
	detector, err := os.ReadFile("detector.py")
	require.NoError(t, err)
	page, err := os.ReadFile("page.py")
	require.NoError(t, err)
	service := rig.Serve(t)
	t.Setenv("POOLBRIDGE_SOCKET", service.Socket)
	camera, err := open(t.Context(), mempool.Host)
	require.NoError(t, err)
	defer camera.client.Close()
	detecting := python.Start(t, string(detector))
	require.Equal(t, "subscribed", detecting.Line(t))
	url := python.Start(t, string(page), "0").Line(t)
	require.NoError(t, camera.frame(t.Context(), 7))
	require.Contains(t, get(t, url, http.StatusOK), "frame.bmp")
	image := get(t, url+"/frame.bmp", http.StatusOK)
	require.Len(t, image, 54+240*320*3)
	assert.Equal(t, "BM", image[:2])
	assert.Equal(t, []byte{0, 0, 255}, []byte(image[54:57]), "the mark, in the order blue, green, red")
	assert.Equal(t, []byte{7, 7, 7}, []byte(image[len(image)-3:]), "the rest is the camera's")
	require.NoError(t, camera.channel.Close(t.Context()))
	assert.Empty(t, detecting.End(t))
	get(t, url+"/frame.bmp", http.StatusServiceUnavailable)
}

func get(t *testing.T, url string, status int) string {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	response, err := http.DefaultClient.Do(request)
	require.NoError(t, err)
	defer response.Body.Close()
	require.Equal(t, status, response.StatusCode)
	body, err := io.ReadAll(response.Body)
	require.NoError(t, err)
	return string(body)
}
