package shmchannel

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const vectorsFile = "../../docs/vectors/streams.json"

var update = flag.Bool("update", false, "write "+vectorsFile)

// vectors is the content of streams.json. docs/vectors/README.md describes it.
type vectors struct {
	Version int
	Layouts []layoutVector
	Files   []fileVector
	Meta    []packedVector
}

type layoutVector struct{ Capacity, Slots, Roster, Sequencer, Track, Cursor uint64 }

type fileVector struct {
	Name      string
	Capacity  uint64
	Roster    *rosterVector    `json:",omitempty"`
	Sequencer *sequencerVector `json:",omitempty"`
	Track     *trackVector     `json:",omitempty"`
	Cursor    *cursorVector    `json:",omitempty"`
	Bytes     []run
}

// run is a part of a file. All bytes that are in no run are zero.
type run struct {
	At  uint64
	Hex string
}

type rosterVector struct {
	Version, State, End, Mode, Policy, Deliveries, Abandoned uint64
	Producers, Consumers                                     []seatVector
}

type seatVector struct {
	Slot                int
	State, Policy, PID  uint32
	Ending              uint32 `json:",omitempty"`
	ID, Timeline, Start uint64
}

type sequencerVector struct {
	Tail                   struct{ Number, Slot, Version uint64 }
	Published, Freed       uint32
	Tickets, Dropped, Head uint64
	Drops                  uint64
	Waiting                []struct{ Slot, Ticket uint64 }
	Order                  []struct{ Number, Slot uint64 }
	Claims                 []struct{ Number, Tag uint64 }
	Deliveries             []struct{ Number, Count uint64 }
}

type trackVector struct {
	ID      uint64
	Records []recordVector
}

type recordVector struct {
	Number, Block, Buffer, Bytes, Time uint64
	Word, Value                        uint64
	Event                              string // hex
	Meta                               []metaVector
	DescriptionID                      uint64
	Description                        Description
}

type metaVector struct{ Key, Value string }

// packedVector is the meta of a frame: bytes, and what they say, or why they are wrong.
type packedVector struct {
	Name, Hex string
	Value     json.RawMessage // null if there is a Why
	Why       string
	Canonical bool // an encoder writes these bytes
}

type cursorVector struct {
	Floor, Next, Used uint64
	Missed            uint64
	Taken, Last       uint64
	Holds             []struct{ Index, Number, Block uint64 }
	Done              []struct{ Number, Value, Word uint64 }
}

func (v rosterVector) write(mem region, l geometry) {
	r := at[roster](mem, 0)
	copy(r.magic[:], rosterMagic)
	r.version.Store(v.Version)
	r.state.Store(v.State)
	r.end.Store(v.End)
	r.mode.Store(v.Mode)
	r.policy.Store(v.Policy)
	r.delivers.Store(v.Deliveries)
	r.abandoned.Store(v.Abandoned)
	r.capacity.Store(l.capacity)
	r.slots.Store(l.slots)
	for _, s := range v.Producers {
		s.write(&r.producers[s.Slot])
	}
	for _, s := range v.Consumers {
		s.write(&r.consumers[s.Slot])
	}
}

func (v seatVector) write(s *seat) {
	s.state.Store(v.State)
	s.policy.Store(v.Policy)
	s.id.Store(v.ID)
	s.timeline.Store(v.Timeline)
	s.start.Store(v.Start)
	s.pid.Store(v.PID)
	s.ending.Store(v.Ending)
}

func (v sequencerVector) write(mem region, l geometry) {
	s := newSequencer(mem, l)
	s.tail.Store(uint64(newTail(v.Tail.Number, int(v.Tail.Slot), v.Tail.Version)))
	s.published.word.Store(v.Published)
	s.freed.word.Store(v.Freed)
	s.tickets.Store(v.Tickets)
	s.dropped.Store(v.Dropped)
	s.head.Store(v.Head)
	s.drops.Store(v.Drops)
	for _, w := range v.Waiting {
		s.waiting[w.Slot].Store(w.Ticket)
	}
	for _, e := range v.Order {
		s.entry(e.Number).Store(uint64(newEntry(e.Number, int(e.Slot))))
	}
	for _, c := range v.Claims {
		s.claim(c.Number).Store(uint64(newClaim(c.Number, c.Tag)))
	}
	for _, d := range v.Deliveries {
		s.delivery(d.Number).Store(uint64(newDelivery(d.Number, d.Count)))
	}
}

func (v recordVector) record(t testing.TB) *Record {
	event, err := hex.DecodeString(v.Event)
	require.NoError(t, err)
	meta := map[string]any{}
	for _, m := range v.Meta {
		meta[m.Key] = m.Value
	}
	encoded, err := AppendMeta(nil, meta)
	require.NoError(t, err)
	return &Record{Block: v.Block, Buffer: v.Buffer, Bytes: v.Bytes, Time: v.Time, Ready: Fence{Word: v.Word, Value: v.Value}, Event: event,
		Meta: encoded, Description: &v.Description}
}

func (v trackVector) write(t testing.TB, mem region, l geometry) {
	writeTrackHead(mem, v.ID)
	tr := newTrack(mem, l, v.ID)
	for _, r := range v.Records {
		raw := tr.begin(r.Number)
		tr.descriptions[r.Number&l.mask()].store(&r.Description, &tr.layouts[r.Number&l.mask()])
		tr.store(raw, r.Number, r.record(t), r.Time, r.DescriptionID)
	}
}

// check reads the track as a consumer does, and compares what it reads with the vector.
func (v trackVector) check(t testing.TB, mem region, l geometry) {
	tr := newTrack(mem, l, v.ID)
	for _, want := range v.Records {
		var r Record
		require.Equal(t, sound, tr.load(want.Number, &r))
		assert.Equal(t, want.Description, *r.Description)
		meta := map[string]any{}
		for _, m := range want.Meta {
			meta[m.Key] = m.Value
		}
		assert.Len(t, DecodeMeta(r.Meta), len(meta))
		for key, value := range DecodeMeta(r.Meta) {
			assert.Equal(t, meta[key], value)
		}
		assert.Equal(t, want.Event, hex.EncodeToString(r.Event))
		assert.Equal(t, []uint64{want.Block, want.Buffer, want.Bytes, want.Time, want.Word, want.Value},
			[]uint64{r.Block, r.Buffer, r.Bytes, r.Time, r.Ready.Word, r.Ready.Value})
	}
}

func (v cursorVector) write(mem region, l geometry) {
	c := newCursor(mem, l, 1)
	c.floor.Store(v.Floor)
	c.next.Store(v.Next)
	c.holdsUsed.Store(v.Used)
	c.missed.Store(v.Missed)
	c.counted.store(v.Taken, v.Last)
	for _, h := range v.Holds {
		c.holds[h.Index].number.Store(h.Number)
		c.holds[h.Index].block.Store(h.Block)
	}
	for _, d := range v.Done {
		c.doneAt(d.Number).store(d.Number, Fence{Word: d.Word, Value: d.Value})
	}
}

// file returns the content of a vector's file.
func (v fileVector) file(t testing.TB) region {
	l := geometryFor(int(v.Capacity))
	switch {
	case v.Roster != nil:
		mem := make(region, RosterBytes)
		v.Roster.write(mem, l)
		return mem
	case v.Sequencer != nil:
		mem := make(region, l.sequencerBytes())
		v.Sequencer.write(mem, l)
		return mem
	case v.Track != nil:
		mem := make(region, l.trackBytes())
		v.Track.write(t, mem, l)
		v.Track.check(t, mem, l)
		return mem
	}
	mem := make(region, l.cursorBytes())
	v.Cursor.write(mem, l)
	return mem
}

// runs returns the parts of a file that are not zero. Each part has 8 bytes or more.
func runs(mem region) (all []run) {
	zero := make([]byte, 8)
	for at := 0; at < len(mem); at += 8 {
		from := at
		for at < len(mem) && !bytes.Equal(mem[at:at+8], zero) {
			at += 8
		}
		if at > from {
			all = append(all, run{uint64(from), hex.EncodeToString(mem[from:at])})
		}
	}
	return all
}

func TestFilesLookAsTheVectorsSay(t *testing.T) {
	text := encode(t, vectorsToWrite())
	if !*update {
		var err error
		text, err = os.ReadFile(vectorsFile)
		require.NoError(t, err)
	}
	var v vectors
	require.NoError(t, json.Unmarshal(text, &v))
	require.NotEmpty(t, v.Layouts)
	require.NotEmpty(t, v.Files)
	require.NotEmpty(t, v.Meta)
	for i, want := range v.Layouts {
		l := geometryFor(int(want.Capacity))
		have := layoutVector{l.capacity, l.slots, RosterBytes, l.sequencerBytes(), l.trackBytes(), l.cursorBytes()}
		if *update {
			v.Layouts[i] = have
		}
		assert.Equal(t, v.Layouts[i], have)
	}
	for i := range v.Files {
		f := &v.Files[i]
		t.Run(f.Name, func(t *testing.T) {
			have := runs(f.file(t))
			if *update {
				f.Bytes = have
			}
			assert.Equal(t, f.Bytes, have)
		})
	}
	for i := range v.Meta {
		t.Run("meta: "+v.Meta[i].Name, func(t *testing.T) { v.Meta[i].check(t) })
	}
	if *update {
		require.NoError(t, os.WriteFile(vectorsFile, encode(t, v), 0o666))
	}
}

// encode writes the names in lower case, empty lists as [], and absent strides as null.
func encode(t testing.TB, v vectors) []byte {
	text, err := json.MarshalIndent(v, "", " ")
	require.NoError(t, err)
	text = regexp.MustCompile(`"\w+": `).ReplaceAllFunc(text, bytes.ToLower)
	text = regexp.MustCompile(`"(producers|consumers|waiting|order|claims|deliveries|records|meta|holds|done|bytes)": null`).ReplaceAll(text, []byte(`"$1": []`))
	return append(text, '\n')
}

func vectorsToWrite() vectors {
	v := vectors{Version: 1}
	for _, capacity := range []uint64{1, 2, 31, 32, 33, 64, 100, 512, 513, 1024} {
		v.Layouts = append(v.Layouts, layoutVector{Capacity: capacity})
	}
	sequencer := &sequencerVector{Published: 7, Freed: 12, Tickets: 99, Dropped: 3, Head: 1 << 40, Drops: 1 << 47}
	sequencer.Tail.Number, sequencer.Tail.Slot, sequencer.Tail.Version = MaxNumber, 62, 1023
	sequencer.Waiting = []struct{ Slot, Ticket uint64 }{{0, 98}, {62, 99}}
	sequencer.Order = []struct{ Number, Slot uint64 }{{1, 0}, {130, 62}, {1<<40 + 63, 5}}
	sequencer.Claims = []struct{ Number, Tag uint64 }{{1, tagDone}, {130, tagRequeued}, {1<<40 + 63, tagConsumer + 1023}}
	sequencer.Deliveries = []struct{ Number, Count uint64 }{{130, 2}, {1<<40 + 63, MaxDelivery}}
	small := &sequencerVector{Head: 1}
	small.Tail.Number, small.Tail.Slot, small.Tail.Version = 2, voidSeat, 3
	small.Order = []struct{ Number, Slot uint64 }{{1, 1}}
	small.Claims = []struct{ Number, Tag uint64 }{{1, tagConsumer}}
	event := make([]byte, EventBytes)
	for i := range event {
		event[i] = byte(i + 1)
	}
	long := string(bytes.Repeat([]byte("x"), 256))
	var most []metaVector
	for i := range 16 {
		most = append(most, metaVector{string(rune('a'+i)) + long[1:], long})
	}
	shape := make([]uint64, MaxDims)
	strides := make([]int64, MaxDims)
	for i := range shape {
		shape[i], strides[i] = uint64(i+1), int64(i-16)
	}
	v.Meta = metaVectors()
	v.Files = []fileVector{
		{Name: "roster of a new broadcast", Capacity: 4, Roster: &rosterVector{}},
		{Name: "roster of a closed queue with members", Capacity: 33, Roster: &rosterVector{
			Version: 1<<32 + 7, State: channelClosed, End: 4711, Mode: uint64(Queue), Policy: uint64(DropOldest), Deliveries: MaxDelivery,
			Abandoned: 1_700_000_000_000_000_001,
			Producers: []seatVector{{Slot: 0, State: seatActive, ID: 1, Timeline: 11, PID: 4242}, {Slot: 62, State: seatLeft, ID: 1 << 50, PID: 17, Ending: uint32(Lost)}},
			Consumers: []seatVector{
				{Slot: 0, State: seatActive, Policy: uint32(Latest), ID: 2, Timeline: 1 << 60, Start: 17, PID: 1<<22 - 1},
				{Slot: 1023, State: seatLeft, Policy: uint32(Fail), ID: 3, Start: 1},
			},
		}},
		{Name: "sequencer of a queue whose newest number is void", Capacity: 4, Sequencer: small},
		{Name: "sequencer with the greatest values", Capacity: 64, Sequencer: sequencer},
		{Name: "track of a producer that has published nothing", Capacity: 4, Track: &trackVector{ID: 5}},
		{Name: "track with records", Capacity: 4, Track: &trackVector{ID: 1 << 50, Records: []recordVector{
			{Number: 1, Block: 2, Buffer: 3, Bytes: 4, Time: 5, DescriptionID: 1,
				Description: Description{DType: "uint8", Shape: []uint64{4}}},
			{Number: 66, Block: 1<<63 - 1, Buffer: 1<<63 - 1, Bytes: 1 << 40, Time: 1_700_000_000_000_000_000, Word: MaxWord, Value: MaxFenceValue,
				Event: hex.EncodeToString(event), Meta: []metaVector{{"", "empty key"}, {"camera", "left"}, {"ä", ""}}, DescriptionID: 2,
				Description: Description{Base: 1<<63 - 512, Offset: 1 << 33, DType: "complex128", Shape: []uint64{2, 0, 3}, Strides: []int64{-3, 1, 1 << 40}}},
			{Number: 1 << 40, Block: 7, Meta: []metaVector{{"k", "v"}}, DescriptionID: 3,
				Description: Description{DType: "bool", Shape: []uint64{}}},
			{Number: 127, Block: 7, Event: hex.EncodeToString(event), Meta: most, DescriptionID: 1 << 63,
				Description: Description{DType: "float4_e2m1fn_x2", Shape: shape, Strides: strides}},
			{Number: 131, Block: 8, Buffer: 9, Bytes: 264, DescriptionID: 4, Description: Description{DType: "uint8", Shape: []uint64{264},
				Layout: []byte("\x81\xa2ar\x92\x82\xa2nm\xa5image\xa1t\x82\xa2dt\xa5uint8\xa2sh\x91\x02\x82\xa2nm\xa5label\xa1t\x82\xa2dt\xa5int64\xa2of\xcd\x01\x00")}},
		}}},
		{Name: "cursor of a new consumer", Capacity: 4, Cursor: &cursorVector{Floor: 8, Next: 8}},
		{Name: "cursor with frames in hand", Capacity: 4, Cursor: &cursorVector{
			Floor: 100, Next: 102, Used: MaxInHand, Missed: 77, Taken: 12, Last: 101,
			Holds: []struct{ Index, Number, Block uint64 }{{0, 98, 5}, {1, 101, 0}, {255, 99, 1 << 60}},
			Done:  []struct{ Number, Value, Word uint64 }{{97, MaxFenceValue, MaxWord}, {64, 1, 0}},
		}},
	}
	return v
}

func (v *packedVector) bytes() string {
	packed, err := hex.DecodeString(v.Hex)
	if err != nil {
		panic(err)
	}
	return string(packed)
}

// check decodes a vector's bytes. With the flag, it writes what they say.
func (v *packedVector) check(t *testing.T) {
	packed := []byte(v.bytes())
	if err := CheckMeta(packed); v.Why != "" {
		require.ErrorIs(t, err, ErrInvalid)
		return
	}
	require.NoError(t, CheckMeta(packed))
	decoded := DecodeMeta(packed)
	text, err := json.Marshal(jsonOf(decoded))
	require.NoError(t, err)
	again, err := AppendMeta(nil, decoded)
	require.NoError(t, err)
	if *update {
		v.Value, v.Canonical = text, bytes.Equal(again, packed)
	}
	var want bytes.Buffer
	require.NoError(t, json.Compact(&want, v.Value))
	assert.Equal(t, want.String(), string(text))
	assert.Equal(t, v.Canonical, bytes.Equal(again, packed))
}

// jsonOf returns a value of meta as JSON has it in the vectors.
func jsonOf(v any) any {
	switch v := v.(type) {
	case []byte:
		return map[string]any{"$bin": hex.EncodeToString(v)}
	case []any:
		out := []any{}
		for _, one := range v {
			out = append(out, jsonOf(one))
		}
		return out
	case map[string]any:
		out := map[string]any{}
		for key, one := range v {
			out[key] = jsonOf(one)
		}
		return out
	}
	return v
}

func metaVectors() (all []packedVector) {
	add := func(why, name, packed string) {
		all = append(all, packedVector{Name: name, Hex: hex.EncodeToString([]byte(packed)), Why: why})
	}
	x := func(n int) string { return string(bytes.Repeat([]byte("x"), n)) }
	add("", "a text", "\x81\xa8exposure\xa18")
	add("", "whole numbers", "\x81\xa1n\xdc\x00\x13\x00\x7f\xcc\x80\xcc\xff\xcd\x01\x00\xcd\xff\xff\xce\x00\x01\x00\x00\xce\xff\xff\xff\xff"+
		"\xcf\x00\x00\x00\x01\x00\x00\x00\x00\xcf\x7f\xff\xff\xff\xff\xff\xff\xff\xcf\xff\xff\xff\xff\xff\xff\xff\xff"+
		"\xff\xe0\xd0\xdf\xd0\x80\xd1\xff\x7f\xd2\xff\xff\x7f\xff\xd3\xff\xff\xff\xff\x7f\xff\xff\xff\xd3\x80\x00\x00\x00\x00\x00\x00\x00")
	add("", "numbers that are longer than they must be", "\x81\xa1n\x96\xcc\x01\xcf\x00\x00\x00\x00\x00\x00\x00\x01\xd0\x01\xd1\x00\x80\xd2\xff\xff\xff\xff\xd3\x00\x00\x00\x00\x00\x00\x00\x07")
	add("", "floats", "\x81\xa1f\x92\xcb\x3f\xf8\x00\x00\x00\x00\x00\x00\xcb\xbf\xb9\x99\x99\x99\x99\x99\x9a")
	add("", "a float of 32 bits", "\x81\xa1f\xca\x3f\xc0\x00\x00")
	add("", "none and booleans", "\x83\xa1f\xc2\xa1n\xc0\xa1t\xc3")
	add("", "bytes", "\x81\xa1b\x92\xc4\x00\xc4\x03\x00\xff\x80")
	add("", "bytes with long lengths", "\x81\xa1b\x92\xc5\x00\x01a\xc6\x00\x00\x00\x01b")
	add("", "texts of each length", "\x84\xa0\xa0\xa1a\xbf"+x(31)+"\xa1b\xd9\x20"+x(32)+"\xa1c\xda\x01\x00"+x(256))
	add("", "texts with long lengths", "\x82\xd9\x01a\xda\x00\x01a\xa1b\xdb\x00\x00\x00\x01a")
	add("", "lists and maps in each other", "\x81\xa1r\x82\xa1h\x93\x01\x90\x80\xa1w\x92\xc0\x81\xa1z\x91\xc3")
	add("", "a list and a map with long lengths", "\x81\xa1l\x92\xdd\x00\x00\x00\x01\x01\xdf\x00\x00\x00\x01\xa1k\x01")
	add("", "eight deep", "\x81\xa1k\x91\x91\x91\x91\x91\x91\x91\xc0")
	add("", "the most bytes", "\x81\xa1b\xc5\x20\x7a"+string(make([]byte, MaxMetaBytes-6)))
	add("", "an empty map", "\x80")
	add("deeper than eight", "nine deep", "\x81\xa1k\x91\x91\x91\x91\x91\x91\x91\x91\xc0")
	add("more than 8,320 bytes", "too many bytes", "\x81\xa1b\xc5\x20\x7b"+string(make([]byte, MaxMetaBytes-5)))
	add("not a map", "a list", "\x91\x01")
	add("not a map", "a number", "\x01")
	add("bytes behind the map", "two maps", "\x80\x80")
	add("ends too early", "a map without its value", "\x81\xa1k")
	add("ends too early", "a map without its second entry", "\x82\xa1k\x01")
	add("ends too early", "half a number", "\x81\xa1k\xcd\x01")
	add("ends too early", "half a length", "\x81\xa1k\xda\x00")
	add("ends too early", "a text that is longer than the meta", "\x81\xa1k\xd9\x05abc")
	add("ends too early", "a list of 2³²-1 elements", "\x81\xa1k\xdd\xff\xff\xff\xff\x01")
	add("ends too early", "a map of 2³²-1 entries", "\xdf\xff\xff\xff\xff\xa1k\x01")
	add("a key is no text", "a number as key", "\x81\x01\x01")
	add("a key is no text", "bytes as key of an inner map", "\x81\xa1k\x81\xc4\x01k\x01")
	add("keys twice", "a key twice", "\x82\xa1k\x01\xa1k\x02")
	add("keys not in order", "keys that descend", "\x82\xa1l\x01\xa1k\x02")
	add("keys not in order", "a key behind one that begins with it", "\x82\xa2kk\x01\xa1k\x02")
	add("keys twice", "a key twice in an inner map", "\x81\xa1m\x82\xa1k\x01\xa1k\x02")
	add("not UTF-8", "a text that is not UTF-8", "\x81\xa1k\xa1\xff")
	add("not UTF-8", "a surrogate", "\x81\xa1k\xa3\xed\xa0\x80")
	add("not UTF-8", "an overlong text", "\x81\xa1k\xa2\xc0\x80")
	add("not UTF-8", "half a character", "\x81\xa1k\xa1\xc3")
	add("not UTF-8", "a key that is not UTF-8", "\x81\xa1\xff\x01")
	for b := 0xc7; b <= 0xc9; b++ {
		add("an extension", "extension "+hex.EncodeToString([]byte{byte(b)}), "\x81\xa1k"+string([]byte{byte(b)})+"\x00\x00\x00\x00\x00\x00")
	}
	for b := 0xd4; b <= 0xd8; b++ {
		add("an extension", "extension "+hex.EncodeToString([]byte{byte(b)}), "\x81\xa1k"+string([]byte{byte(b)})+x(17))
	}
	add("no value", "the byte c1", "\x81\xa1k\xc1")
	return all
}
