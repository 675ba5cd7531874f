package session

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/internal/shmchannel"
)

func TestWaitsThatWereNotInVainCount(t *testing.T) {
	var w Waits
	began := time.Now().Add(-time.Second)
	w.Over(began, true)
	w.Over(began, false)
	count, total := w.Total()
	assert.EqualValues(t, 1, count)
	assert.GreaterOrEqual(t, total, 2*time.Second)
}

func TestTheErrorOfAFrameThatIsLargerThanItsMemoryHasBothSizes(t *testing.T) {
	frame := &shmchannel.Frame{}
	frame.Description, frame.Bytes = &shmchannel.Description{DType: "uint8", Shape: []uint64{100}}, 8
	_, err := (&block{bytes: 4096}).describeLocked(frame)
	require.ErrorIs(t, err, ErrCorruptRecord)
	assert.True(t, strings.HasSuffix(err.Error(), "uint8[100] of 100 bytes in memory of 8"), err.Error())
}
