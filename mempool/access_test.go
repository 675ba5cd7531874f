package mempool

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestAccessIsByUserGroupOrSupplementaryGroup(t *testing.T) {
	list := Access{UIDs: []uint32{7}, GIDs: []uint32{70}}
	for what, c := range map[string]struct {
		peer Peer
		want bool
	}{
		"its user":                {Peer{UID: 7, GID: 1}, true},
		"its group":               {Peer{UID: 1, GID: 70}, true},
		"its supplementary group": {Peer{UID: 1, GID: 1, Groups: []uint32{2, 70}}, true},
		"nobody it knows":         {Peer{UID: 70, GID: 7, Groups: []uint32{7}}, false},
		"root is nobody special":  {Peer{}, false},
	} {
		assert.Equal(t, c.want, list.Allows(c.peer), what)
	}
	assert.False(t, Access{}.Allows(Peer{}), "an empty list is nobody's")
}
