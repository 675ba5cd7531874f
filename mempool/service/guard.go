package service

import "github.com/poolbridge/poolbridge/mempool"

// guard says whether another process takes over when this one dies. Service.mu guards it.
type guard struct {
	state   string // see mempool.ServiceStats
	pid     int32
	useless bool // the books or a descriptor could not be kept
}

// lose notes that the service does not outlive its process any more. The caller holds the lock.
func (g *guard) lose(text string, mu *mutex) {
	g.state, g.pid = mempool.GuardLost, 0
	mu.note(mempool.HistoryEvent{Kind: mempool.ServiceImpaired, Text: text}, nil)
}

// giveUp notes that the guard is of no use any more; why says what the service lacks. The caller holds the lock.
func (g *guard) giveUp(why string, mu *mutex) {
	g.useless = true
	g.lose("the service does not outlive its process any more: "+why, mu)
}
