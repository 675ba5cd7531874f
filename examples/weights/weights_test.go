package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/bridge/safetensors"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/tests/rig"
)

func TestAClientHasTheNewestWeightsAndNoneTwice(t *testing.T) {
	service := rig.Serve(t, "--pool", "name=p,kind=host,max=64MiB")
	c, err := bridge.Dial(t.Context(), service.Socket)
	require.NoError(t, err)
	defer c.Close()
	pool, err := c.TryOpenPool(t.Context(), "p")
	require.NoError(t, err)
	publish := func(name string, what mempool.Tensor, b byte) {
		l, err := pool.TryAllocate(t.Context(), what)
		require.NoError(t, err)
		require.NoError(t, l.Fill(t.Context(), 0, l.Grant().Bytes-l.Tensor().LayoutBytes, b))
		require.NoError(t, l.Publish(t.Context(), mempool.Publication{Name: name, Keep: true, Replace: true}))
		require.NoError(t, l.Release(false))
	}
	web := httptest.NewServer(handler(service.Socket))
	defer web.Close()
	get := func(name, known string) (status int, tag, body string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, web.URL+"/"+name, nil)
		require.NoError(t, err)
		request.Header.Set("If-None-Match", known)
		answer, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		defer answer.Body.Close()
		content, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, answer.Header.Get("ETag"), string(content)
	}
	weights, err := mempool.Pack(mempool.NamedTensor{Name: "w", Tensor: mempool.Tensor{DType: mempool.Float32, Shape: []uint64{3, 2}}},
		mempool.NamedTensor{Name: "b", Tensor: mempool.Tensor{DType: mempool.Int16, Shape: []uint64{5}}})
	require.NoError(t, err)
	tag := ""
	for _, b := range []byte{1, 2} {
		publish("llama", weights, b)
		status, now, body := get("llama", tag)
		require.Equal(t, http.StatusOK, status, body)
		tag = now
		path := filepath.Join(t.TempDir(), "llama.safetensors")
		require.NoError(t, os.WriteFile(path, []byte(body), 0o600))
		files, err := safetensors.Open(path)
		require.NoError(t, err)
		l, err := pool.TryAllocate(t.Context(), files.Tensor)
		require.NoError(t, err)
		require.NoError(t, files.Load(t.Context(), l, new(atomic.Uint64)))
		require.NoError(t, files.Close())
		for _, name := range []string{"w", "b"} {
			a, ok := l.Tensor().Array(name)
			require.True(t, ok)
			of, _ := weights.Array(name)
			assert.Equal(t, of.Shape, a.Shape)
			got := make([]byte, 10)
			require.NoError(t, l.CopyTo(t.Context(), got, a.ByteOffset))
			assert.Equal(t, []byte{b, b, b, b, b, b, b, b, b, b}, got)
		}
		require.NoError(t, l.Release(false))
		status, _, body = get("llama", tag)
		assert.Equal(t, http.StatusNotModified, status)
		assert.Empty(t, body)
	}
	status, _, body := get("none", "")
	assert.Equal(t, http.StatusNotFound, status)
	assert.Contains(t, body, `nothing is published as "none"`)
	publish("one", mempool.Bytes(64), 3)
	status, _, body = get("one", "")
	assert.Equal(t, http.StatusInternalServerError, status)
	assert.Contains(t, body, "the buffer is one array")
}
