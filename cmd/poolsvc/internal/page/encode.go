package page

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/mempool"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// maxSessions is how many sessions the page shows one by one: the first of look.Sessions.
const maxSessions = 2000

// maxEvents is how many events the page shows.
const maxEvents = 200

// look has everything that the page shows, except the maps of the pools and the events. All numbers of bytes are sums
// of the sizes of blocks. Times are in seconds.
type look struct {
	At       int64     `json:"at"` // milliseconds since 1970
	Version  string    `json:"version"`
	Epoch    string    `json:"epoch"`
	Count    int       `json:"count"` // number of all sessions; Sessions has at most maxSessions of them
	Leases   int       `json:"leases"`
	Buffers  int       `json:"buffers"`
	Pools    []pool    `json:"pools"`
	Sessions []session `json:"sessions"` // those with the greatest part come first, then those with the most bytes
	Channels []channel `json:"channels"`
}

type pool struct {
	ID       uint64 `json:"id"`
	Name     string `json:"name"`
	Kind     string `json:"kind"`
	GPU      string `json:"gpu,omitempty"`
	Max      uint64 `json:"max"`
	Reserved uint64 `json:"reserved"`
	Busy     uint64 `json:"busy"`
	Used     uint64 `json:"used"`
	Cached   uint64 `json:"cached"`
	Held     uint64 `json:"held"`
	Blocks   int    `json:"blocks"`
}

type session struct {
	ID      uint64   `json:"id"`
	UID     uint32   `json:"uid"`
	PID     int32    `json:"pid"`
	Program string   `json:"program"`
	Age     float64  `json:"age"`
	Leases  int      `json:"leases"`
	Bytes   uint64   `json:"bytes"`
	Ended   bool     `json:"ended,omitempty"`
	Wants   []uint64 `json:"wants,omitempty"` // the pools that have no free memory for the session
	Waits   string   `json:"waits,omitempty"`
	Waited  float64  `json:"waited,omitempty"`
	Part    int      `json:"part"` // a display.Part: 1 is a producer that waits for a consumer, 2 a consumer that producers wait for
}

type channel struct {
	ID        uint64   `json:"id"`
	Name      string   `json:"name"`
	Pool      uint64   `json:"pool"`
	Mode      string   `json:"mode"`
	Full      string   `json:"full"`
	Capacity  int      `json:"capacity"`
	Published uint64   `json:"published"`
	Dropped   uint64   `json:"dropped"`
	Used      uint64   `json:"used"`
	Waiting   uint64   `json:"waiting"`
	Slowest   uint64   `json:"slowest,omitempty"`
	Closed    bool     `json:"closed,omitempty"`
	Blocked   *float64 `json:"blocked,omitempty"` // since when producers wait for room; nil: they do not wait
	Blocks    bool     `json:"blocks"`            // whether producers wait, or nobody takes their frames, and somebody should act
	Victims   string   `json:"victims"`           // the producers, which wait if Blocks is true
	Members   []member `json:"members"`
}

type member struct {
	Session  uint64 `json:"session"`
	Producer bool   `json:"producer,omitempty"`
	Behind   uint64 `json:"behind,omitempty"`
	Missed   uint64 `json:"missed,omitempty"`
}

// atlas has the maps of the pools.
type atlas struct {
	At    int64     `json:"at"`
	Pools []poolMap `json:"pools"`
}

type poolMap struct {
	ID       uint64  `json:"id"`
	Reserved uint64  `json:"reserved"`
	Blocks   []block `json:"blocks"`
	Rest     []group `json:"rest"`
}

type block struct {
	ID      uint64   `json:"id"`
	Bytes   uint64   `json:"bytes"`
	Use     string   `json:"use"`
	Session uint64   `json:"session,omitempty"`
	Mapped  int      `json:"mapped,omitempty"`
	Buffer  uint64   `json:"buffer,omitempty"`
	Used    uint64   `json:"used,omitempty"`
	Tensor  string   `json:"tensor,omitempty"`
	Name    string   `json:"name,omitempty"`
	Age     float64  `json:"age,omitempty"`
	Writer  uint64   `json:"writer,omitempty"`
	Readers []uint64 `json:"readers,omitempty"`
	Reads   int      `json:"reads,omitempty"`
	Failed  bool     `json:"failed,omitempty"`
}

type group struct {
	Use     string `json:"use"`
	Session uint64 `json:"session,omitempty"`
	Bytes   uint64 `json:"bytes"`
	Blocks  int    `json:"blocks"`
}

type event struct {
	Number  uint64 `json:"number"`
	At      int64  `json:"at"` // milliseconds since 1970
	Kind    string `json:"kind"`
	Trouble bool   `json:"trouble,omitempty"`
	Text    string `json:"text"`
	Session uint64 `json:"session,omitempty"`
	PID     int32  `json:"pid,omitempty"`
	Program string `json:"program,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"`
	Ending  string `json:"ending,omitempty"`
}

// encoder makes the messages for the page of a service. version is the version of the service.
type encoder struct {
	of      Source
	version string
}

// encode describes the service. `most` limits how many blocks all maps together show one by one. If `most` is 0, encode makes no maps.
// `took` is how long the service worked on the description.
func (e encoder) encode(most int) (out [messages][]byte, took time.Duration) {
	now := time.Now()
	o := e.of.Overview(most)
	took = time.Since(now)
	out[lookMessage] = line(e.look(o, now))
	if most > 0 {
		out[mapMessage] = line(mapsOf(o, now))
	}
	out[eventsMessage] = line(e.events())
	return out, took
}

// events returns the events, with the newest event first.
func (e encoder) events() []event {
	list := []event{}
	last := e.of.LastEvent()
	if last == 0 {
		return list
	}
	page, _ := e.of.Events(context.Background(), last-min(last, maxEvents), maxEvents) // there are events, so Events neither waits nor fails
	for _, one := range slices.Backward(page.Events) {
		text := event{Number: one.Number, At: one.At.UnixMilli(), Kind: string(one.Kind), Trouble: one.Kind.Trouble(), Text: display.Happened(one),
			Session: one.Session, PID: one.PID, Bytes: one.Bytes, Ending: string(one.Ending)}
		if one.Session != 0 {
			text.Program = display.Printable(one.Program)
		}
		list = append(list, text)
	}
	return list
}

// line returns a value as JSON. Every value of the page can be encoded.
func line(value any) []byte {
	text, _ := json.Marshal(value)
	return text
}

func (e encoder) look(o service.Overview, now time.Time) look {
	l := look{At: now.UnixMilli(), Version: e.version, Epoch: e.of.Epoch().String(), Count: o.Sessions, Leases: o.Leases,
		Buffers: o.Buffers, Pools: []pool{}, Sessions: []session{}, Channels: []channel{}}
	for _, p := range o.Pools {
		one := pool{ID: p.Pool.ID, Name: display.Printable(p.Pool.Name), Kind: string(p.Pool.Kind), Max: p.Pool.MaxBytes, Reserved: p.Reserved, Busy: p.Leased,
			Used: p.Used, Cached: p.Cached, Held: p.Held, Blocks: p.Blocks}
		if p.Pool.Device != mempool.NoDevice {
			one.GPU = p.Pool.Device.UUID
		}
		l.Pools = append(l.Pools, one)
	}
	jams := make([]display.Jam, len(o.Flows))
	for i, f := range o.Flows {
		jams[i].ChannelInfo = f.ChannelInfo
		for _, m := range f.Members {
			jams[i].Members = append(jams[i].Members, mempool.MemberInfo{Session: m.Session, Program: m.Program, Role: string(m.Role)})
		}
	}
	parts := display.Parts(jams)
	holders := slices.DeleteFunc(slices.Clone(o.Holders), func(h service.Holder) bool { return h.Watches })
	l.Count -= len(o.Holders) - len(holders)
	slices.SortStableFunc(holders, func(a, b service.Holder) int {
		return cmp.Or(cmp.Compare(parts[b.ID], parts[a.ID]), cmp.Compare(b.Bytes, a.Bytes))
	})
	for _, h := range holders[:min(len(holders), maxSessions)] {
		one := session{ID: h.ID, UID: h.UID, PID: h.PID, Program: display.Printable(h.Program), Age: seconds(now.Sub(h.Began)), Leases: h.Leases,
			Bytes: h.Bytes, Ended: h.Ended, Wants: h.Wants, Part: int(parts[h.ID])}
		if h.WaitsFor != "" {
			one.Waits, one.Waited = display.Printable(h.WaitsFor), seconds(now.Sub(h.Since))
		}
		l.Sessions = append(l.Sessions, one)
	}
	for i, f := range o.Flows {
		one := channel{ID: f.ID, Name: display.Printable(f.Name), Pool: f.Pool, Mode: string(f.Mode), Full: string(f.Full), Capacity: f.Capacity,
			Published: f.Published, Dropped: f.Dropped, Used: f.Used, Waiting: f.Waiting, Slowest: f.Slowest, Closed: f.Closed,
			Blocks: display.PartOf(f.ChannelInfo) > display.NoPart, Victims: jams[i].Victims(), Members: []member{}}
		if !f.BlockedSince.IsZero() {
			blocked := seconds(now.Sub(f.BlockedSince))
			one.Blocked = &blocked
		}
		for _, m := range f.Members {
			one.Members = append(one.Members, member{m.Session, m.Role == service.Producer, m.Behind, m.Missed})
		}
		l.Channels = append(l.Channels, one)
	}
	return l
}

func mapsOf(o service.Overview, now time.Time) atlas {
	a := atlas{At: now.UnixMilli(), Pools: []poolMap{}}
	for i, m := range o.Maps {
		one := poolMap{ID: o.Pools[i].Pool.ID, Reserved: o.Pools[i].Reserved, Blocks: []block{}, Rest: []group{}}
		for _, b := range m.Blocks {
			text := block{ID: b.ID, Bytes: b.Bytes, Use: b.Use.String(), Session: b.Session, Mapped: b.Mapped, Buffer: b.Buffer, Used: b.BufferBytes,
				Age: seconds(b.Age), Writer: b.Writer, Readers: b.Readers, Reads: b.Reads, Failed: b.Failed}
			if b.Tensor != nil {
				text.Tensor = tensor(*b.Tensor)
			}
			if b.Name != "" {
				text.Name = display.Printable(display.Name(b.Name, b.Version, b.Published))
			}
			one.Blocks = append(one.Blocks, text)
		}
		for _, g := range m.Rest {
			one.Rest = append(one.Rest, group{g.Use.String(), g.Session, g.Bytes, g.Blocks})
		}
		a.Pools = append(a.Pools, one)
	}
	return a
}

func seconds(d time.Duration) float64 { return d.Truncate(time.Second).Seconds() }

// tensor describes the type and the shape of a tensor.
func tensor(t mempool.Tensor) string {
	if t.LayoutBytes > 0 {
		return display.Content(t, ": ")
	}
	shape, _ := json.Marshal(t.Shape)
	if t.Shape == nil {
		shape = []byte("[]")
	}
	return string(t.DType) + " " + strings.ReplaceAll(string(shape), ",", ", ")
}
