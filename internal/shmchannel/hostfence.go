package shmchannel

// Fences appends the fences in a member's file, the greatest value of each word. For a consumer they say when its work on frames is done,
// for a producer when its frames are complete. ok is false while a consumer writes a fence: the caller tries again later. A member whose
// process is gone has no fences. Members can write anything into their files: values out of range are ignored.
func (h *Host) Fences(to []Fence, m *Member) (fences []Fence, ok bool) {
	if m.Timeline == 0 || m.gone {
		return to, true
	}
	var greatest [MaxWord + 1]uint64
	note := func(word, value uint64) {
		if word <= MaxWord && value <= MaxValue {
			greatest[word] = max(greatest[word], value)
		}
	}
	if m.track != nil {
		for i := range m.track.records {
			r := &m.track.records[i]
			note(r.small.Load()&0xffff, r.ready.Load())
		}
	}
	if m.cursor != nil {
		for i := range m.cursor.done {
			_, t, ok := m.cursor.done[i].load()
			if !ok {
				return to, false
			}
			note(t.Word, t.Value)
		}
	}
	for word, value := range greatest {
		if value != 0 {
			to = append(to, Fence{Timeline: m.Timeline, Word: uint64(word), Value: value})
		}
	}
	return to, true
}
