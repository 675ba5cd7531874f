package verify

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestWhatLibrariesSayOfThemselvesMakesOneRoster(t *testing.T) {
	r := enrol([]Roster{
		{Python: "3.12", Native: true, Packages: map[string]string{"numpy": "2"}, Consumers: map[string][]string{"host": {"numpy"}, "pinned": {"numpy"}}},
		{Python: "3.12", Native: true, Packages: map[string]string{"torch": "3"}, Consumers: map[string][]string{"host": {"torch"}, "device": {}},
			Missing: map[string]string{"device": "torch is installed without support for CUDA"}},
		broken("jax", errors.New("the worker is gone")),
		broken("jax", errors.New("the worker is gone")),
	})
	assert.Equal(t, map[string]string{"numpy": "2", "torch": "3"}, r.Packages)
	assert.Equal(t, []string{"go", "numpy", "torch"}, r.consumersOf(mempool.Host))
	assert.Equal(t, []string{"go"}, r.consumersOf(mempool.Device))
	assert.Equal(t, "torch is installed without support for CUDA; jax cannot be imported: the worker is gone", r.missing(mempool.Device))
	assert.Equal(t, "3.12", r.Python)
	assert.True(t, r.Native)
}
