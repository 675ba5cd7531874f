package bridge

import "time"

// tickEvery is the time between two calls of Client.tick.
const tickEvery = 500 * time.Millisecond

func (s *memberships) addPublisher(p *Publisher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.publishers == nil {
		s.publishers = make(map[*Publisher]struct{})
	}
	s.publishers[p] = struct{}{}
}

// publishersIn returns the client's publishers in a pool; 0 stands for all pools.
func (s *memberships) publishersIn(pool uint64) (list []*Publisher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.publishers {
		if pool == 0 || p.channel.info.Pool == pool {
			list = append(list, p)
		}
	}
	return list
}

// loans closes all publishers and returns their loans.
func (s *memberships) loans() (loans []*Lease) {
	for _, p := range s.publishersIn(0) {
		p.mu.Lock()
		p.closed.Store(true)
		p.mu.Unlock()
		loans = append(loans, p.loans()...)
	}
	return loans
}

// arenas returns the arenas of all publishers of a producer.
func (s *memberships) arenas(of *producing) (arenas []*arena) {
	for _, p := range s.publishersIn(of.channel.Pool) {
		if p.from == of {
			p.mu.Lock()
			arenas = append(arenas, p.arenas...)
			p.mu.Unlock()
		}
	}
	return arenas
}

// startTicks makes the client call tick at intervals of tickEvery, as long as there is something to do.
func (s *memberships) startTicks(c *Client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.ticking {
		s.ticking = true
		time.AfterFunc(tickEvery, func() { c.tasks.add(c.tick) })
	}
}

// tick takes the memory that has come back to the publishers, and gives the memory of idle publishers back to the service. It runs as a task.
func (c *Client) tick() {
	s := &c.shared
	s.mu.Lock()
	s.ticking = false
	s.mu.Unlock()
	if c.working.Err() != nil {
		return
	}
	again := false
	for _, p := range s.publishersIn(0) {
		p.from.reclaim()
		if p.tick() {
			again = true
		} else if p.closed.Load() {
			s.mu.Lock()
			delete(s.publishers, p)
			s.mu.Unlock()
		}
	}
	if again {
		s.startTicks(c)
	}
}
