package seqpacket

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// tableSize returns how many descriptors fit into the table of this process before the table must grow.
func tableSize(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	size := regexp.MustCompile(`FDSize:\s+(\d+)`).FindSubmatch(status)
	require.NotNil(t, size)
	n, err := strconv.Atoi(string(size[1]))
	require.NoError(t, err)
	return n
}

func TestReserveMakesRoomForDescriptors(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	n := 2 * tableSize(t)
	if uint64(n) > limit.Cur {
		t.Skipf("only %d descriptors are allowed", limit.Cur)
	}
	room, err := Reserve(n)
	require.NoError(t, err)
	assert.Equal(t, n, room)
	assert.GreaterOrEqual(t, tableSize(t), n)
}

func TestReserveStopsAtTheLimit(t *testing.T) {
	var limit unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	if limit.Cur > 1<<20 {
		t.Skipf("%d descriptors are allowed, whose table would take much memory", limit.Cur)
	}
	room, err := Reserve(int(limit.Cur) + 1)
	require.NoError(t, err)
	assert.EqualValues(t, limit.Cur, room)
	assert.LessOrEqual(t, uint64(tableSize(t)), max(2*limit.Cur, 64))
}
