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
	Producers, Consumers                                     []slotVector
}

type slotVector struct {
	Slot                int
	State, Policy, PID  uint32
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

type cursorVector struct {
	Floor, Next, Used uint64
	Missed            uint64
	Taken, Last       uint64
	Holds             []struct{ Index, Number, Block uint64 }
	Done              []struct{ Number, Value, Word uint64 }
}

func (v rosterVector) write(mem region, l layout) {
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

func (v slotVector) write(s *slot) {
	s.state.Store(v.State)
	s.policy.Store(v.Policy)
	s.id.Store(v.ID)
	s.timeline.Store(v.Timeline)
	s.start.Store(v.Start)
	s.pid.Store(v.PID)
}

func (v sequencerVector) write(mem region, l layout) {
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
	meta := map[string]string{}
	for _, m := range v.Meta {
		meta[m.Key] = m.Value
	}
	encoded, err := AppendMeta(nil, meta)
	require.NoError(t, err)
	return &Record{Block: v.Block, Buffer: v.Buffer, Bytes: v.Bytes, Time: v.Time, Ready: Fence{Word: v.Word, Value: v.Value}, Event: event,
		Meta: encoded, Description: &v.Description}
}

func (v trackVector) write(t testing.TB, mem region, l layout) {
	writeTrackHead(mem, v.ID)
	tr := newTrack(mem, l, v.ID)
	for _, r := range v.Records {
		raw := tr.begin(r.Number)
		tr.descriptions[r.Number&l.mask()].store(&r.Description)
		tr.store(raw, r.Number, r.record(t), r.Time, r.DescriptionID)
	}
}

// check reads the track as a consumer does, and compares what it reads with the vector.
func (v trackVector) check(t testing.TB, mem region, l layout) {
	tr := newTrack(mem, l, v.ID)
	for _, want := range v.Records {
		var r Record
		require.Equal(t, sound, tr.load(want.Number, &r))
		assert.Equal(t, want.Description, *r.Description)
		meta := []metaVector{}
		for key, value := range Meta(r.Meta) {
			meta = append(meta, metaVector{string(key), string(value)})
		}
		assert.Equal(t, want.Meta, meta)
		assert.Equal(t, want.Event, hex.EncodeToString(r.Event))
		assert.Equal(t, []uint64{want.Block, want.Buffer, want.Bytes, want.Time, want.Word, want.Value},
			[]uint64{r.Block, r.Buffer, r.Bytes, r.Time, r.Ready.Word, r.Ready.Value})
	}
}

func (v cursorVector) write(mem region, l layout) {
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
	l := layoutFor(int(v.Capacity))
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
	for i, want := range v.Layouts {
		l := layoutFor(int(want.Capacity))
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
	sequencer.Claims = []struct{ Number, Tag uint64 }{{1, tagDone}, {130, tagReturned}, {1<<40 + 63, tagConsumer + 1023}}
	sequencer.Deliveries = []struct{ Number, Count uint64 }{{130, 2}, {1<<40 + 63, MaxDelivery}}
	small := &sequencerVector{Head: 1}
	small.Tail.Number, small.Tail.Slot, small.Tail.Version = 2, voidSlot, 3
	small.Order = []struct{ Number, Slot uint64 }{{1, 1}}
	small.Claims = []struct{ Number, Tag uint64 }{{1, tagConsumer}}
	event := make([]byte, EventBytes)
	for i := range event {
		event[i] = byte(i + 1)
	}
	long := string(bytes.Repeat([]byte("x"), MaxMetaText))
	var most []metaVector
	for i := range MaxMetaEntries {
		most = append(most, metaVector{string(rune('a'+i)) + long[1:], long})
	}
	shape := make([]uint64, MaxDims)
	strides := make([]int64, MaxDims)
	for i := range shape {
		shape[i], strides[i] = uint64(i+1), int64(i-16)
	}
	v.Files = []fileVector{
		{Name: "roster of a new broadcast", Capacity: 4, Roster: &rosterVector{}},
		{Name: "roster of a closed queue with members", Capacity: 33, Roster: &rosterVector{
			Version: 1<<32 + 7, State: channelClosed, End: 4711, Mode: uint64(Queue), Policy: uint64(DropOldest), Deliveries: MaxDelivery,
			Abandoned: 1_700_000_000_000_000_001,
			Producers: []slotVector{{Slot: 0, State: slotActive, ID: 1, Timeline: 11, PID: 4242}, {Slot: 62, State: slotLeft, ID: 1 << 50}},
			Consumers: []slotVector{
				{Slot: 0, State: slotActive, Policy: uint32(Latest), ID: 2, Timeline: 1 << 60, Start: 17, PID: 1<<22 - 1},
				{Slot: 1023, State: slotLeft, Policy: uint32(Fail), ID: 3, Start: 1},
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
				Description: Description{DType: "fifteen-letters", Shape: shape, Strides: strides}},
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
