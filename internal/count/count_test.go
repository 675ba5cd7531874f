package count

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestOneIsNotSeveral(t *testing.T) {
	assert.Equal(t, []string{"0 leases", "1 lease", "2 leases"}, []string{Of(0, "lease"), Of(uint64(1), "lease"), Of(2, "lease")})
}
