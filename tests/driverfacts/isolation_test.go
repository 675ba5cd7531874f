package driverfacts_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const nobody = 65534

func TestPoolsCrossNamespacesAndUsers(t *testing.T) {
	needPools(t)
	for name, set := range map[string]setting{
		"PID, mount and IPC namespaces": {namespaces: true},
		"a private /dev/shm":            {privateShm: true},
		"another user":                  {uid: nobody},
		"all of them":                   {namespaces: true, uid: nobody, memlock: 64 * kib},
	} {
		t.Run(name, func(t *testing.T) {
			owner, user := start(t, setting{}), start(t, set)
			b := owner.shared(mib, 0x21)
			i := user.imported(b)
			assert.True(t, user.is(i.ptr, i.size, 0x21))
			require.NoError(t, user.fill(i.ptr, i.size, 0x43))
			assert.True(t, owner.is(b.ptr, b.size, 0x43))
		})
	}
}
