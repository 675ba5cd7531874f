package shmchannel

import (
	"bytes"
	"os"
	"sync/atomic"
)

const trackMagic = "PBTRCK01"

// track is a producer's file. It has the producer's records. Only that producer writes the file.
type track struct {
	*counted
	region
	geometry
	id           uint64
	records      []rawRecord
	descriptions []rawDescription
	meta         []rawMeta
	layouts      []rawLayout

	lastLayout   []byte // that of the description that was remembered last
	knownLayouts int    // bytes of the layouts that `known` has

	// known has descriptions that the consumer has read from this track. The description with the id i has the index i modulo the length.
	// Only a consumer uses known.
	known []known
}

// known is a description that a consumer has read from a track.
type known struct {
	id uint64
	d  *Description
}

// maxKnown is how many descriptions of one track a consumer remembers for each slot. The chunks of a publisher's arenas all have their own
// descriptions, with ids that follow each other.
const maxKnown = 4

// mapTrack maps the track of the producer with this id. The service has said which producer the file is of. The head of the file says so
// too, for people: mapTrack does not read it, because the producer can write it.
//
// Errors: [ErrFile]; errors of the system.
func mapTrack(f *os.File, l geometry, id uint64, write bool) (*track, error) {
	mem, err := mapFile(f, l.trackBytes(), write)
	if err != nil {
		return nil, err
	}
	return newTrack(mem, l, id), nil
}

func writeTrackHead(mem region, id uint64) {
	*at[[8]byte](mem, 0) = [8]byte([]byte(trackMagic))
	at[atomic.Uint64](mem, 8).Store(id)
}

func newTrack(mem region, l geometry, id uint64) *track {
	return &track{
		counted: at[counted](mem, 16), region: mem, geometry: l, id: id,
		records:      list[rawRecord](mem, trackHeadBytes, l.slots),
		descriptions: list[rawDescription](mem, l.descriptionsAt(), l.slots),
		meta:         list[rawMeta](mem, l.metaAt(), l.slots),
		layouts:      list[rawLayout](mem, l.layoutsAt(), l.slots),
	}
}

// begin marks the record of frame `number` as incomplete, because the caller is about to write the record. After begin, the caller also
// stores the frame's description, if the slot of the frame has a different description.
func (t *track) begin(number uint64) *rawRecord {
	r := &t.records[number&t.mask()]
	r.seq.Store(0)
	return r
}

// store writes the record of a frame, and at last the frame's number. The caller calls begin before store. Python's consumer
// reads it in read_record of python/native/consumer.c.
func (t *track) store(raw *rawRecord, number uint64, r *Record, when, description uint64) {
	small := r.Ready.Word | uint64(len(r.Meta))<<32
	if len(r.Event)+len(r.Meta) > 0 {
		m, word := &t.meta[number&t.mask()], 0
		if len(r.Event) > 0 {
			small |= flagEvent << 16
			storeBytes(m[:], r.Event)
			word = EventBytes / 8
		}
		storeBytes(m[word:], r.Meta)
	}
	put(&raw.block, r.Block)
	put(&raw.buffer, r.Buffer)
	put(&raw.bytes, r.Bytes)
	put(&raw.time, when)
	put(&raw.ready, r.Ready.Value)
	put(&raw.small, small)
	put(&raw.description, description)
	raw.seq.Store(number)
}

// published returns when the frame with this number was published, in nanoseconds since 1970, or 0 if its record was overwritten.
func (t *track) published(number uint64) uint64 {
	raw := &t.records[number&t.mask()]
	when := raw.time.Load()
	if raw.seq.Load() != number {
		return 0
	}
	return when
}

// verdict is a text for people that says what is wrong with a record.
type verdict string

// Code outside this file compares a verdict with these two values.
const (
	sound verdict = ""
	torn  verdict = "its record belongs to another frame"
)

// load reads the record of a number into r and reuses r's slices.
func (t *track) load(number uint64, r *Record) verdict {
	i := number & t.mask()
	raw := &t.records[i]
	if raw.seq.Load() != number {
		return torn
	}
	small := raw.small.Load()
	description := raw.description.Load()
	r.Block, r.Buffer, r.Bytes, r.Time = raw.block.Load(), raw.buffer.Load(), raw.bytes.Load(), raw.time.Load()
	r.Ready.Value, r.Ready.Word = raw.ready.Load(), small&0xffff
	r.Event, r.Meta = r.Event[:0], r.Meta[:0]
	flags, length := small>>16&0xffff, small>>32
	if flags > flagEvent || length > MaxMetaBytes {
		return t.checked(raw, number, "its flags or the length of its meta are out of range")
	}
	if small>>16 != 0 {
		m, word := &t.meta[i], 0
		if flags != 0 {
			r.Event = loadBytes(r.Event, m[:], EventBytes)
			word = EventBytes / 8
		}
		r.Meta = loadBytes(r.Meta, m[word:], int(length))
	}
	if t.known == nil {
		t.known = make([]known, maxKnown*t.slots)
	}
	k := &t.known[description&(maxKnown*t.slots-1)]
	fresh := k.d == nil || k.id != description
	if r.Description = k.d; fresh {
		r.Description = t.descriptions[i].load(&t.layouts[i])
	}
	if raw.seq.Load() != number {
		return torn
	}
	if err := r.check(); err != nil {
		return verdict(err.Error())
	}
	if fresh {
		if err := r.Description.Validate(); err != nil {
			return verdict(err.Error())
		}
		t.remember(k, known{description, r.Description})
	}
	return sound
}

// maxKnownLayouts is how many bytes of layouts a consumer remembers for one track.
const maxKnownLayouts = 1 << 20

// remember keeps a description that is valid. Descriptions with equal layouts share the layout's bytes.
func (t *track) remember(at *known, k known) {
	if layout := k.d.Layout; len(layout) > 0 {
		if bytes.Equal(t.lastLayout, layout) {
			k.d.Layout = t.lastLayout
		} else if t.knownLayouts += len(layout); t.knownLayouts > maxKnownLayouts {
			clear(t.known)
			t.knownLayouts = len(layout)
		}
		t.lastLayout = k.d.Layout
	}
	*at = k
}

// checked returns torn if the producer replaced the record meanwhile. Otherwise it returns v.
func (t *track) checked(raw *rawRecord, number uint64, v verdict) verdict {
	if raw.seq.Load() != number {
		return torn
	}
	return v
}

// block returns the block of the frame with this number, or 0 if the slot has the record of another frame.
func (t *track) block(number uint64) uint64 {
	raw := &t.records[number&t.mask()]
	if raw.seq.Load() != number {
		return 0
	}
	b := raw.block.Load()
	if raw.seq.Load() != number {
		return 0
	}
	return b
}
