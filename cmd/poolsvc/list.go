package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/display"
	"github.com/poolbridge/poolbridge/internal/similar"
	"github.com/poolbridge/poolbridge/mempool"
)

// listing is a command that lists entries of a running service, for example its sessions.
type listing[T any] struct {
	name, short, long string
	entries           func(*bridge.Client, context.Context) iter.Seq2[T, error]
	head              string
	row               func(T, *listed) string
	json              func(T, *listed) map[string]any

	// named says that rows name sessions of the entries by their programs.
	named bool

	// part returns what an entry has to do with producers that wait: a table shows such entries first, in colour; nil: no entry has a part.
	part func(T, *listed) display.Part

	// compare orders the entries; nil: the entries keep the order of the service.
	compare func(a, b T) int

	// Some flags, for example --pool, select entries by a value of the entry. Each of these functions returns the value of an entry for one
	// flag. If a function is nil, the command does not have the flag.
	ofPool     func(T) uint64
	ofSessions func(T) []uint64
	ofUser     func(T) uint32
	ofProcess  func(T) int32
}

// listed has the data that the rows of a table need besides the entries.
type listed struct {
	now   time.Time
	pools map[uint64]string // names of pools, by id

	programs map[uint64]string // programs of sessions, by id; only for a listing that names them
	commands map[int32]string  // command lines, by process
	jams     []display.Jam     // only for a table of entries that have a part
	parts    map[uint64]display.Part
}

// command returns the command line of the process `pid` if this program can read the command line and the process belongs to the user
// `uid`. Otherwise it returns `program`, the name that the client has given itself.
func (l *listed) command(pid int32, uid uint32, program string) string {
	text, known := l.commands[pid]
	if !known {
		text = program
		path := fmt.Sprintf("/proc/%d/cmdline", pid)
		var owner unix.Stat_t
		if line, err := os.ReadFile(path); err == nil && len(line) > 0 && unix.Stat(path, &owner) == nil && owner.Uid == uid {
			text = cmp.Or(commandLine(line), program)
		}
		l.commands[pid] = text
	}
	return text
}

// commandLine returns the words of a file /proc/PID/cmdline, the first without its folder, for which tables have no room. Some programs
// write a title there instead, which stays whole.
func commandLine(file []byte) string {
	words := strings.Split(strings.TrimRight(string(file), "\x00"), "\x00")
	if filepath.IsAbs(words[0]) {
		words[0] = filepath.Base(words[0])
	}
	return strings.Join(words, " ")
}

// who returns the program and the id of a session, or "-" if the id is 0.
func (l *listed) who(session uint64) string {
	switch program := l.programs[session]; {
	case session == 0:
		return "-"
	case program == "":
		return fmt.Sprint(session)
	default:
		return fmt.Sprintf("%s (%d)", short(program), session)
	}
}

// maxCommand is how many characters of a command line a table shows.
const maxCommand = 40

func short(text string) string {
	if r := []rune(text); len(r) > maxCommand {
		text = string(r[:maxCommand-1]) + "…"
	}
	return display.Printable(text)
}

func (l *listed) pool(id uint64) string {
	if name, ok := l.pools[id]; ok {
		return name
	}
	return fmt.Sprint("#", id)
}

func newLists() []*cobra.Command {
	return []*cobra.Command{
		listing[mempool.SessionInfo]{
			name:  "sessions",
			short: "Show the sessions of a running service",
			long: `Show the sessions of your user, without those that only watch, as this command and top do. The service's own user sees those of all users.
Those that block producers come first, then producers that wait, then the sessions with the most bytes.`,
			entries: func(c *bridge.Client, ctx context.Context) iter.Seq2[mempool.SessionInfo, error] {
				return display.Users(c.Session(), c.Sessions(ctx))
			},
			compare: func(a, b mempool.SessionInfo) int {
				return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.ID, b.ID))
			},
			head: "SESSION\tUSER\tPID\tPROGRAM\tAGE\tLEASES\tBYTES\tBLOCKS\tMEMBERS\tWAITS FOR",
			row: func(s mempool.SessionInfo, l *listed) string {
				return fmt.Sprintf("%d\t%d\t%d\t%s\t%s\t%d\t%s\t%d\t%d\t%s", s.ID, s.UID, s.PID, display.Printable(s.Program), display.Age(l.now.Sub(s.Began)), s.Leases,
					display.Size(s.Bytes), s.Blocks, s.Members, display.Doing(s, l.jams, l.now))
			},
			part:       func(s mempool.SessionInfo, l *listed) display.Part { return l.parts[s.ID] },
			json:       jsonSessionInfo,
			ofSessions: func(s mempool.SessionInfo) []uint64 { return []uint64{s.ID} },
			ofUser:     func(s mempool.SessionInfo) uint32 { return s.UID },
			ofProcess:  func(s mempool.SessionInfo) int32 { return s.PID },
		}.command(),
		listing[mempool.ChannelInfo]{
			name:  "channels",
			short: "Show the channels of a running service",
			long: `Show the channels that you may use, with how many producers and consumers take part now. Of CAPACITY places USED are taken up: where all are, the
channel is full, and the next frame waits, fails, or drops another. WAITING is how many frames the consumer of SLOWEST has still to take; in a
queue, how many frames are not acknowledged, of which SLOWEST has the oldest; but no more than CAPACITY (--json has the whole number). DROPPED
are frames that consumers missed; in a queue, also those that were delivered too often.`,
			entries: (*bridge.Client).Channels,
			head:    "CHANNEL\tID\tPOOL\tMODE\tCAPACITY\tFULL\tPRODUCERS\tCONSUMERS\tFRAMES\tDROPPED\tUSED\tWAITING\tSLOWEST\tSTATE",
			row: func(ch mempool.ChannelInfo, l *listed) string {
				return fmt.Sprintf("%s\t%d\t%s\t%s\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s", ch.Name, ch.ID, l.pool(ch.Pool), ch.Mode, ch.Capacity, ch.Full, ch.Producers,
					ch.Consumers, ch.Published, ch.Dropped, ch.Used, min(ch.Waiting, uint64(ch.Capacity)), l.who(ch.Slowest), display.State(ch))
			},
			named: true,
			part:  func(ch mempool.ChannelInfo, _ *listed) display.Part { return display.PartOf(ch) },
			json: func(ch mempool.ChannelInfo, l *listed) map[string]any {
				out := jsonChannelInfo(ch, l)
				out["state"] = state(ch)
				return out
			},
			ofPool:     func(ch mempool.ChannelInfo) uint64 { return ch.Pool },
			ofSessions: func(ch mempool.ChannelInfo) []uint64 { return []uint64{ch.Slowest} },
			ofUser:     func(ch mempool.ChannelInfo) uint32 { return ch.UID },
		}.command(),
		listing[mempool.NameInfo]{
			name:    "names",
			short:   "Show the buffers that are published in a running service",
			long:    "Show the names of the buffers that you may lease. A name is removed when its SESSION ends, or with the last lease (while used), or is kept (-).",
			entries: (*bridge.Client).Names,
			head:    "NAME\tPOOL\tVERSION\tBUFFER\tDTYPE\tSHAPE\tBYTES\tUSER\tSESSION",
			row: func(n mempool.NameInfo, l *listed) string {
				until := l.who(n.Session)
				if n.WhileUsed {
					until = "while used"
				}
				return fmt.Sprintf("%s\t%s\t%d\t%d\t%s\t%s\t%d\t%s", n.Name, l.pool(n.Pool), n.Version, n.Buffer, display.Content(n.Tensor, "\t"), display.Size(n.Bytes),
					n.UID, until)
			},
			named:      true,
			json:       jsonNameInfo,
			ofPool:     func(n mempool.NameInfo) uint64 { return n.Pool },
			ofSessions: func(n mempool.NameInfo) []uint64 { return []uint64{n.Session} },
			ofUser:     func(n mempool.NameInfo) uint32 { return n.UID },
		}.command(),
		listing[mempool.BufferInfo]{
			name:  "buffers",
			short: "Show the buffers of a running service and the sessions that hold them",
			long: `Show the buffers of the pools that you may use. NAME is the name and version of the buffer's newest publication; (former): it has lost that name.
COUNTS FOR and BY are sessions: the program, and the id in brackets. A block counts for the session that allocated its buffer, also while only a name or
a channel has the buffer. With --session, BLOCK sums to BYTES of poolsvc sessions; poolsvc leases --session shows what a session uses. USE and BY say
who writes or reads the buffer, or that it is only published, or in a channel: then BY is the producer. With --json, layout_bytes is not 0 for several arrays.`,
			entries: (*bridge.Client).Buffers,
			head:    "BUFFER\tPOOL\tNAME\tDTYPE\tSHAPE\tBYTES\tBLOCK\tCOUNTS FOR\tUSE\tBY\tNAMES",
			row: func(b mempool.BufferInfo, l *listed) string {
				return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d", b.ID, l.pool(b.Pool), display.Name(b.Name, b.Version, b.Published),
					display.Content(b.Tensor, "\t"), display.Size(b.Bytes), display.Size(b.BlockBytes), l.who(b.Session), display.Use(b), users(b, l), b.Names)
			},
			named:      true,
			json:       jsonBufferInfo,
			ofPool:     func(b mempool.BufferInfo) uint64 { return b.Pool },
			ofSessions: func(b mempool.BufferInfo) []uint64 { return []uint64{b.Session} },
		}.command(),
		listing[mempool.LeaseInfo]{
			name:  "leases",
			short: "Show the leases of a running service and the processes that have them",
			long: `Show the leases on buffers of the pools that you may use. COMMAND is the command line of the process, or, if you cannot see the process, what
the client calls itself. WAITS FOR is what the session has waited for longest. A producer's
leases to write also hold the frames that it has published.`,
			entries: (*bridge.Client).Leases,
			head:    "LEASE\tSESSION\tUSER\tPID\tCOMMAND\tAGE\tTO\tPOOL\tBUFFER\tBYTES\tWAITS FOR",
			row: func(e mempool.LeaseInfo, l *listed) string {
				return fmt.Sprintf("%d\t%d\t%d\t%d\t%s\t%s\t%s\t%s\t%d\t%s\t%s", e.ID, e.Session, e.UID, e.PID, short(l.command(e.PID, e.UID, e.Program)),
					display.Age(l.now.Sub(e.Began)), access(e), l.pool(e.Pool), e.Buffer, display.Size(e.Bytes), display.Waits(e.WaitsFor, l.now.Sub(e.Since)))
			},
			json: func(e mempool.LeaseInfo, l *listed) map[string]any {
				out := jsonLeaseInfo(e, l)
				out["to"], out["command"] = access(e), l.command(e.PID, e.UID, e.Program)
				return out
			},
			ofPool:     func(e mempool.LeaseInfo) uint64 { return e.Pool },
			ofSessions: func(e mempool.LeaseInfo) []uint64 { return []uint64{e.Session} },
			ofUser:     func(e mempool.LeaseInfo) uint32 { return e.UID },
			ofProcess:  func(e mempool.LeaseInfo) int32 { return e.PID },
		}.command(),
	}
}

func (l listing[T]) command() *cobra.Command {
	var v view
	var f filter
	c := &cobra.Command{
		Use:   l.name,
		Short: l.short,
		Long:  l.long,
		Args:  arguments(0, 0),
	}
	v.flags(c)
	l.filterFlags(c, &f)
	c.RunE = func(c *cobra.Command, _ []string) error {
		return v.show(c, func(ctx context.Context, client *bridge.Client, out io.Writer) error {
			stats, err := client.Stats(ctx)
			if err != nil {
				return err
			}
			with := &listed{now: time.Now(), pools: make(map[uint64]string), programs: make(map[uint64]string), commands: make(map[int32]string)}
			for _, p := range stats.Pools {
				with.pools[p.Pool.ID] = p.Pool.Name
			}
			if l.part != nil && !v.json {
				channels, err := display.All(client.Channels(ctx))
				if err != nil {
					return err
				}
				if with.jams, err = display.Jams(ctx, channels, client.Members); err != nil {
					return err
				}
				with.parts = display.Parts(with.jams)
			}
			if l.named && !v.json {
				for s, err := range client.Sessions(ctx) {
					if err != nil {
						return err
					}
					with.programs[s.ID] = s.Program
				}
			}
			entries, err := display.All(l.entries(client, ctx))
			if err != nil {
				return err
			}
			entries = slices.DeleteFunc(entries, func(e T) bool { return !l.passes(c, &f, e, with) })
			if len(entries) == 0 && v.watch == 0 {
				if err := l.exist(ctx, c, client, &f, with); err != nil {
					return err
				}
			}
			if l.compare != nil {
				slices.SortFunc(entries, l.compare)
			}
			if v.json {
				return l.printJSON(&v, out, entries, with)
			}
			if l.part != nil {
				slices.SortStableFunc(entries, func(a, b T) int { return cmp.Compare(l.part(b, with), l.part(a, with)) })
			}
			return l.print(out, entries, with)
		})
	}
	return c
}

// filter has the values of the flags that filter a list.
type filter struct {
	pool    string
	session uint64
	user    userID
	pid     int32
}

// userID is a user on the command line: a number such as 1000, or a name that this machine knows.
type userID uint32

// Set reads a user from text.
func (u *userID) Set(text string) error {
	id := text
	if known, err := user.Lookup(text); err == nil {
		id = known.Uid
	}
	n, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return fmt.Errorf("there is no user %q on this machine: expected a user's name or id", text)
	}
	*u = userID(n)
	return nil
}

// Type returns the name that --help shows for the type of the value.
func (*userID) Type() string { return "user" }

func (u *userID) String() string { return strconv.FormatUint(uint64(*u), 10) }

// filterFlags adds the filter flags that this list supports.
func (l listing[T]) filterFlags(c *cobra.Command, f *filter) {
	if l.ofPool != nil {
		c.Flags().StringVar(&f.pool, "pool", "", "only entries of the pool of this name")
	}
	if l.ofSessions != nil {
		c.Flags().Uint64Var(&f.session, "session", 0, "only entries of the session of this id")
	}
	if l.ofUser != nil {
		c.Flags().Var(&f.user, "user", "only entries of the user of this name or id")
	}
	if l.ofProcess != nil {
		c.Flags().Int32Var(&f.pid, "pid", 0, "only entries of the process of this id")
	}
}

// passes says whether an entry passes the filter flags.
func (l listing[T]) passes(c *cobra.Command, f *filter, e T, with *listed) bool {
	given := c.Flags().Changed
	return (!given("pool") || with.pool(l.ofPool(e)) == f.pool) && (!given("session") || slices.Contains(l.ofSessions(e), f.session)) &&
		(!given("user") || l.ofUser(e) == uint32(f.user)) && (!given("pid") || l.ofProcess(e) == f.pid)
}

// exist returns an error if a filter flag names a pool or a session that does not exist.
func (l listing[T]) exist(ctx context.Context, c *cobra.Command, client *bridge.Client, f *filter, with *listed) error {
	if c.Flags().Changed("pool") && !slices.Contains(slices.Collect(maps.Values(with.pools)), f.pool) {
		return unknown("pool", f.pool, maps.Values(with.pools), func(name string) string { return name })
	}
	if f.session == 0 { // the user named no session, or asked for entries without a session
		return nil
	}
	for s, err := range client.Sessions(ctx) {
		if err != nil || s.ID == f.session {
			return err
		}
	}
	return fmt.Errorf("there is no session %d that you may see: poolsvc sessions shows all that you may see", f.session)
}

// unknown returns the error for a name of a pool or channel that is none of the known ones.
func unknown[T any](what, name string, known iter.Seq[T], nameOf func(T) string) error {
	names := func(yield func(string) bool) {
		for one := range known {
			if !yield(nameOf(one)) {
				return
			}
		}
	}
	return fmt.Errorf("there is no %[1]s %[2]q that you may see: poolsvc %[1]ss shows all that you may see%[3]s", what, name, similar.Hint(name, names))
}

func (l listing[T]) print(out io.Writer, entries []T, with *listed) error {
	t := table{head: l.head}
	for _, e := range entries {
		t.add(l.part != nil && l.part(e, with) > 0, "%s", l.row(e, with))
	}
	return t.print(out)
}

// table is a table with rows in colour. Its columns are separated by tabs.
type table struct {
	head   string
	rows   []string
	marked []bool // rows that show what blocks others
}

func (t *table) add(marked bool, format string, args ...any) {
	t.rows, t.marked = append(t.rows, fmt.Sprintf(format, args...)), append(t.marked, marked)
}

// print prints the table. The caller's writer leaves colours out if nobody can see them.
func (t *table) print(out io.Writer) error {
	var text bytes.Buffer
	w := tabwriter.NewWriter(display.Safe(&text), 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, t.head)
	for _, row := range t.rows {
		fmt.Fprintln(w, row)
	}
	if err := w.Flush(); err != nil {
		return err
	}
	lines := strings.SplitAfter(text.String(), "\n")
	for i, marked := range t.marked {
		if marked {
			lines[i+1] = display.Bad.Render(strings.TrimSuffix(lines[i+1], "\n")) + "\n"
		}
	}
	_, err := io.WriteString(out, strings.Join(lines, ""))
	return err
}

func (l listing[T]) printJSON(v *view, out io.Writer, entries []T, with *listed) error {
	all := []any{}
	for _, e := range entries {
		all = append(all, l.json(e, with))
	}
	return v.writeJSON(out, map[string]any{l.name: all})
}

func access(l mempool.LeaseInfo) string {
	if l.Write {
		return "write"
	}
	return "read"
}

func state(ch mempool.ChannelInfo) string {
	if ch.Closed {
		return "closed"
	}
	return "open"
}

// shape returns the shape of a tensor. The result is never nil, so JSON shows [] instead of null.
func shape(t mempool.Tensor) []uint64 { return append([]uint64{}, t.Shape...) }

// users names the writer of a buffer, or else the readers.
func users(b mempool.BufferInfo, l *listed) string {
	if b.Writer != 0 || b.Reads == 0 {
		return l.who(b.Writer)
	}
	text := ""
	for i, id := range b.Readers {
		if i > 0 {
			text += ", "
		}
		text += l.who(id)
	}
	if more := b.Reads - len(b.Readers); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
