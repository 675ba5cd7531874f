package shmchannel

// Fences appends the fences in a member's file to the slice `to`: for each word of the member's timeline, the fence with the greatest
// value. The fences of a consumer say when the consumer's work on frames is done. The fences of a producer say when the producer's frames
// are complete. If the member is a consumer that writes a fence at this moment, ok is false, and the caller calls Fences again later. If
// the member's process is gone, Fences appends nothing. A member can write anything into its file, so Fences ignores values that are out of
// range.
func (h *Host) Fences(to []Fence, m *Member) (fences []Fence, ok bool) {
	if m.Timeline == 0 || m.gone {
		return to, true
	}
	var greatest [MaxWord + 1]uint64
	note := func(word, value uint64) {
		if word <= MaxWord && value <= MaxFenceValue {
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
