package mempool

// Blocks says whether the channel is full and its producers wait for consumers. A channel that drops frames, or refuses them, blocks nobody.
func (ch ChannelInfo) Blocks() bool {
	return !ch.Closed && ch.Full == Block && ch.Producers > 0 && ch.Used >= uint64(ch.Capacity)
}
