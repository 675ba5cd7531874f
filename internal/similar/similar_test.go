package similar

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNamesWithATypoAreSimilar(t *testing.T) {
	for _, name := range []string{"weights", "wegihts", "weihts", "Weights2", "weights-of-v2", "my-weights", "veights"} {
		if name != "weights" {
			assert.Equal(t, `; did you mean "weights"?`, Hint(name, slices.Values([]string{"camera", "weights", name})), name)
		}
	}
	for _, name := range []string{"w", "camera", "wait", "weather-of-today", ""} {
		assert.Empty(t, Hint(name, slices.Values([]string{"weights", "x", ""})), name)
	}
}

func TestAtMostThreeNamesAreNamedEachOnce(t *testing.T) {
	assert.Equal(t, `; did you mean "p1" or "p2" or "p3"?`, Hint("p", slices.Values([]string{"p4", "p3", "p3", "p2", "p1"})))
}
