package mempool

import (
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"frames": true, "a b/c:d": true, "Bilder für alle": true, "画": true,
		strings.Repeat("x", MaxNameBytes):     true,
		"":                                    false,
		strings.Repeat("x", MaxNameBytes+1):   false,
		strings.Repeat("é", MaxNameBytes/2+1): false, // the limit counts bytes, not letters
		"a\x00b":                              false,
		"a\nb":                                false,
		"\x7f":                                false,
		"\u0085":                              false,
		"a\xffb":                              false,
		"\xc0\xaf":                            false,
	} {
		err := ValidateName("buffer", name)
		if ok {
			assert.NoError(t, err, "%q", name)
		} else {
			assert.ErrorIs(t, err, ErrInvalid, "%q", name)
		}
	}
}

func TestASpecThatNoMachineCouldMakeIsInvalid(t *testing.T) {
	good := PoolSpec{Name: "p", Kind: Host, MaxBytes: 1}
	assert.NoError(t, good.Validate())
	for what, change := range map[string]func(*PoolSpec){
		"no name":                        func(s *PoolSpec) { s.Name = "" },
		"unknown kind":                   func(s *PoolSpec) { s.Kind = "tape" },
		"no bytes":                       func(s *PoolSpec) { s.MaxBytes = 0 },
		"more than 2^63-1":               func(s *PoolSpec) { s.MaxBytes = math.MaxInt64 + 1 },
		"a device of the host":           func(s *PoolSpec) { s.Device = "0" },
		"a session's limit above itself": func(s *PoolSpec) { s.SessionBytes = 2 },
	} {
		bad := good
		change(&bad)
		assert.ErrorIs(t, bad.Validate(), ErrInvalid, what)
	}
}
