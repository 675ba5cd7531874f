package display

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestNoTextOfAClientReachesATerminalAsACommand(t *testing.T) {
	assert.Equal(t, "a?[2Jb?c", Printable("a\x1b[2Jb\nc"))
	assert.Equal(t, "größe", Printable("größe"))
	assert.Equal(t, "-", Printable(""))
}

func TestTheTextOfAnEventHasItsCountOnce(t *testing.T) {
	slow := mempool.HistoryEvent{Kind: mempool.SubscriberSlow, Text: "slow", Count: 1}
	assert.Equal(t, "slow", Happened(slow))
	slow.Count = 2
	assert.Equal(t, "slow (2 times)", Happened(slow))
	assert.Equal(t, "dropped 438 frames", Happened(mempool.HistoryEvent{Kind: mempool.FrameLost, Text: "dropped 438 frames", Count: 438}))
}

func TestSizesHaveThreeDigitsOrSo(t *testing.T) {
	for n, want := range map[uint64]string{0: "0B", 1023: "1023B", 1024: "1KiB", 1536: "1.5KiB", 112192 << 10: "110MiB", 3 << 40: "3TiB"} {
		assert.Equal(t, want, Size(n))
	}
}

func TestAgesHaveTwoUnitsAtMost(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1500 * time.Millisecond: "1s", 65 * time.Second: "1m05s", 3*time.Hour + 4*time.Minute: "3h04m", 50 * time.Hour: "2d",
	} {
		assert.Equal(t, want, Age(d))
	}
}

func TestAFullQueueBlocksNobodyWhileItsConsumersTakeFrames(t *testing.T) {
	of := func(mode mempool.ChannelMode, untaken bool) bool {
		return Blocks(mempool.ChannelInfo{ChannelIdentity: mempool.ChannelIdentity{ChannelSpec: mempool.ChannelSpec{Mode: mode}}, Untaken: untaken, Blocked: true})
	}
	assert.True(t, of(mempool.Broadcast, false))
	assert.True(t, of(mempool.WorkQueue, true))
	assert.False(t, of(mempool.WorkQueue, false))
	assert.Equal(t, "it has 0 consumers", NobodyTakes(mempool.ChannelInfo{}))
	assert.Equal(t, "none of its consumers (2) takes a frame", NobodyTakes(mempool.ChannelInfo{Consumers: 2}))
}
