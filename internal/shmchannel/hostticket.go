package shmchannel

// Tickets appends the tickets that stand in a member's file: of a consumer, those that say when its work on frames is done; of a
// producer, those that say when its frames are complete. A ticket that a newer one of the same place has taken over is not among them. ok is false
// while the member writes one, whatever its process says: then the caller looks again later. The file may say anything; tickets out of
// range are left out.
func (h *Host) Tickets(to []Ticket, m *Member) (tickets []Ticket, ok bool) {
	if m.Timeline == 0 || m.gone {
		return to, true
	}
	add := func(t Ticket) {
		if t.Value != 0 && t.Value <= MaxValue && t.Word <= MaxWord {
			t.Timeline = m.Timeline
			to = append(to, t)
		}
	}
	if m.track != nil {
		for i := range m.track.records {
			r := &m.track.records[i]
			add(Ticket{Value: r.ready.Load(), Word: r.small.Load() & 0xffff})
		}
	}
	if m.cursor != nil {
		for i := range m.cursor.done {
			_, t, ok := m.cursor.done[i].load()
			if !ok {
				return to, false
			}
			add(t)
		}
	}
	return to, true
}
