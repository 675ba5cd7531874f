package shmchannel

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// childEnv tells the test program to run as a member of a channel.
const childEnv = "SHMCHANNEL_TEST_CHILD"

// emulatorEnv names the emulator that runs this program, if it is built for another processor.
const emulatorEnv = "SHMCHANNEL_TEST_EMULATOR"

// job says what a child must do.
type job struct {
	Role     Role
	Seat     int
	ID       uint64
	Mode     Mode
	Capacity uint64
	Blocks   []uint64 // the blocks of a producer
	Seed     uint64
	Spin     time.Duration
	Drain    bool    // the consumer only takes frames
	Members  []other // the child inherits their files in this order
}

type other struct {
	Role Role
	Seat int
	ID   uint64
}

// A child process inherits the files with these descriptors. The first descriptor is 3.
const (
	fileRoster = 3 + iota
	fileSequencer
	fileOwn
	filePool
	fileLedger
	fileMembers
)

// blockBytes is the size of a block in these tests. A producer writes the same value to all words of a block.
const blockBytes = 64

type content [blockBytes / 8]atomic.Uint64

// pool is memory for the content of frames.
type pool []content

const poolBlocks = 1 << 14

func mapShared(f *os.File, bytes uint64) region {
	mem, err := mapFile(f, bytes, true)
	if err != nil {
		panic(err)
	}
	return mem
}

func (p pool) fill(block, value uint64) {
	for i := range p[block] {
		p[block][i].Store(value)
	}
}

func (p pool) check(f *Frame) error {
	for i := range p[f.Block] {
		if have := p[f.Block][i].Load(); have != f.Buffer {
			return fmt.Errorf("frame %d says that block %d has %#x, word %d has %#x", f.Number, f.Block, f.Buffer, i, have)
		}
	}
	return nil
}

// ledger records what a child process has done. The ledger is a file, so the test can read it after the child has died.
type ledger struct {
	count *atomic.Uint64
	lines []line
}

type line struct{ number, value, missed, what uint64 }

// These constants are the kinds of lines in a ledger. For an acknowledgment, the child writes one line before it and one line after it. For
// each other step, the child writes one line.
const (
	didPublish = iota
	didTake
	willAcknowledge
	didAcknowledge
	didRequeue
)

const (
	ledgerLines = 1 << 20
	ledgerBytes = 64 + 32*ledgerLines
)

func newLedger(mem region) *ledger {
	return &ledger{at[atomic.Uint64](mem, 0), list[line](mem, 64, ledgerLines)}
}

func (l *ledger) add(x line) {
	n := l.count.Load()
	if n == ledgerLines {
		panic("the ledger is full")
	}
	l.lines[n] = x
	l.count.Store(n + 1)
}

func (l *ledger) all() []line { return l.lines[:l.count.Load()] }

func childMain() error {
	var j job
	if err := json.Unmarshal([]byte(os.Getenv(childEnv)), &j); err != nil {
		return err
	}
	file := func(fd int) *os.File { return os.NewFile(uintptr(fd), fmt.Sprint("file ", fd)) }
	config := MemberConfig{Roster: file(fileRoster), Sequencer: file(fileSequencer), Own: file(fileOwn), Seat: j.Seat, ID: j.ID, Spin: j.Spin}
	child := &child{
		job:    j,
		pool:   list[content](mapShared(file(filePool), poolBlocks*blockBytes), 0, poolBlocks),
		ledger: newLedger(mapShared(file(fileLedger), ledgerBytes)),
		random: rand.New(rand.NewPCG(j.Seed, j.ID)),
		stop:   make(chan struct{}),
	}
	lines := bufio.NewScanner(os.Stdin)
	opened := func() {
		fmt.Println("open")
		if !lines.Scan() {
			os.Exit(3)
		}
		go func() {
			for lines.Scan() {
				close(child.stop)
			}
			os.Exit(3) // the test process has ended
		}()
	}
	if j.Role == ProducerRole {
		p, err := OpenProducer(config)
		if err != nil {
			return err
		}
		for i, o := range j.Members {
			if o.Role == ConsumerRole {
				if err := p.AddCursor(o.Seat, o.ID, file(fileMembers+i)); err != nil {
					return err
				}
			}
		}
		opened()
		return errors.Join(child.produce(p), p.Close())
	}
	c, err := OpenConsumer(ConsumerConfig{MemberConfig: config})
	if err != nil {
		return err
	}
	for i, o := range j.Members {
		if o.Role == ProducerRole {
			if err := c.AddTrack(o.Seat, o.ID, file(fileMembers+i)); err != nil {
				return err
			}
		}
	}
	opened()
	if j.Drain {
		return errors.Join(drain(c), c.Close())
	}
	return errors.Join(child.consume(c), c.Close())
}

type child struct {
	job
	pool   pool
	ledger *ledger
	random *rand.Rand
	stop   chan struct{}
}

// produce publishes until the test tells the child to stop, and then waits until all blocks of the producer are back.
func (c *child) produce(p *Producer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	free := c.Blocks
	reclaim := func() error {
		back, err := awaitReclaim(ctx, p)
		for _, b := range back {
			free = append(free, b.Block)
		}
		return err
	}
	r := Record{Description: bytes64, Bytes: blockBytes}
	for n := uint64(1); ; n++ {
		select {
		case <-c.stop:
			fmt.Println("stopped")
			for p.Outstanding() > 0 {
				if err := reclaim(); err != nil {
					return fmt.Errorf("%d blocks are outstanding: %w", p.Outstanding(), err)
				}
			}
			if len(free) != len(c.Blocks) {
				return fmt.Errorf("%d blocks came back, of %d", len(free), len(c.Blocks))
			}
			return nil
		default:
		}
		for len(free) == 0 {
			if err := reclaim(); err != nil {
				return err
			}
		}
		r.Block, free = free[0], free[1:]
		r.Buffer = c.ID<<32 | n
		c.pool.fill(r.Block, r.Buffer)
		number, err := p.Publish(ctx, &r)
		if err != nil {
			return err
		}
		c.ledger.add(line{number: number, value: r.Buffer, what: didPublish})
		if c.random.IntN(64) == 0 {
			time.Sleep(time.Duration(c.random.IntN(300)) * time.Microsecond)
		}
	}
}

// consume takes frames until the channel has ended. In a broadcast, the consumer may have several frames in hand: frames that it has taken
// and not released yet.
func (c *child) consume(consumer *Consumer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	var hand []*Frame
	for {
		f := &Frame{}
		err := consumer.Take(ctx, f)
		if errors.Is(err, ErrEnded) {
			return consumer.Leave()
		}
		if err != nil {
			return err
		}
		c.ledger.add(line{f.Number, f.Buffer, f.Missed, didTake})
		if err := c.pool.check(f); err != nil {
			return err
		}
		hand = append(hand, f)
		if c.random.IntN(256) == 0 {
			time.Sleep(time.Duration(c.random.IntN(2000)) * time.Microsecond)
		}
		keep := c.random.IntN(5)
		c.random.Shuffle(len(hand), func(i, j int) { hand[i], hand[j] = hand[j], hand[i] })
		rest := hand[:0]
		for i, f2 := range hand {
			// Other members may wait until this consumer releases a frame. So keep a frame only in a broadcast, and only as long as producers can
			// publish another frame without the release. Release all other frames now.
			if i < keep && f.Number-f2.Number+1 < c.Capacity && c.Mode == Broadcast {
				rest = append(rest, f2)
			} else if err := c.finish(consumer, f2); err != nil {
				return err
			}
		}
		hand = rest
	}
}

// finish checks the content of the frame once more and releases the frame.
func (c *child) finish(consumer *Consumer, f *Frame) error {
	if err := c.pool.check(f); err != nil {
		return fmt.Errorf("before its release: %w", err)
	}
	if c.Mode == Queue {
		if c.random.IntN(10) == 0 {
			c.ledger.add(line{number: f.Number, value: f.Buffer, what: didRequeue})
			if err := consumer.Requeue(f); err != nil {
				return err
			}
		} else {
			c.ledger.add(line{number: f.Number, value: f.Buffer, what: willAcknowledge})
			if err := consumer.Acknowledge(f); err != nil {
				return err
			}
			c.ledger.add(line{number: f.Number, value: f.Buffer, what: didAcknowledge})
		}
	}
	return consumer.Release(f, Fence{})
}

// family is a channel whose members run in their own processes.
type family struct {
	t        testing.TB
	host     *Host
	members  []*Member // every member of the test, including members that join later
	poolFile *os.File
	nextPool uint64
}

// process is a member that runs in its own process.
type process struct {
	*family
	job
	member *Member
	cmd    *exec.Cmd
	in     *json.Encoder
	stdin  interface{ Close() error }
	out    *bufio.Scanner
	errors strings.Builder
	ledger *ledger
	killed bool
}

func newFamily(t testing.TB, spec Spec, members ...MemberSpec) *family {
	t.Helper()
	h, err := NewHost(spec, nil, nil)
	require.NoError(t, err)
	poolFile, err := makeFile(nil, "pool", poolBlocks*blockBytes)
	require.NoError(t, err)
	f := &family{t: t, host: h, poolFile: poolFile, nextPool: 1}
	for _, m := range members {
		member, err := h.Add(m)
		require.NoError(t, err)
		f.members = append(f.members, member)
	}
	t.Cleanup(func() {
		require.NoError(t, h.Free())
		require.NoError(t, poolFile.Close())
	})
	return f
}

// start starts the process of a member and joins it to the channel.
func (f *family) start(m *Member, j job) *process {
	f.t.Helper()
	j.Role, j.Seat, j.ID, j.Mode, j.Capacity = m.Role, m.Seat, m.ID, f.host.mode, f.host.capacity
	ledgerFile, err := makeFile(nil, "ledger", ledgerBytes)
	require.NoError(f.t, err)
	defer ledgerFile.Close()
	files := []*os.File{f.host.RosterFile(), f.host.SequencerFile(), m.File(), f.poolFile, ledgerFile}
	for _, o := range f.members {
		if o.Role != m.Role && o.File() != nil {
			j.Members = append(j.Members, other{o.Role, o.Seat, o.ID})
			files = append(files, o.File())
		}
	}
	text, err := json.Marshal(j)
	require.NoError(f.t, err)
	mem := mapShared(ledgerFile, ledgerBytes)
	f.t.Cleanup(func() { require.NoError(f.t, mem.unmap()) })
	p := &process{family: f, job: j, member: m, ledger: newLedger(mem)}
	p.cmd = exec.Command(os.Args[0])
	if emulator := os.Getenv(emulatorEnv); emulator != "" {
		p.cmd = exec.Command(emulator, os.Args[0])
	}
	p.cmd.Env = append(os.Environ(), childEnv+"="+string(text))
	p.cmd.ExtraFiles = files
	p.cmd.Stderr = &p.errors
	in, err := p.cmd.StdinPipe()
	require.NoError(f.t, err)
	out, err := p.cmd.StdoutPipe()
	require.NoError(f.t, err)
	require.NoError(f.t, p.cmd.Start())
	p.in, p.stdin, p.out = json.NewEncoder(in), in, bufio.NewScanner(out)
	p.says("open")
	require.NoError(f.t, f.host.Join(m))
	require.NoError(f.t, p.in.Encode("go"))
	return p
}

func (p *process) says(word string) {
	p.t.Helper()
	require.True(p.t, p.out.Scan(), "the process of member %d has ended", p.ID)
	require.Equal(p.t, word, p.out.Text())
}

// wait waits for the end of the process and fails the test if the process found an error.
func (p *process) wait() {
	p.t.Helper()
	require.NoError(p.t, p.cmd.Wait(), "member %d: %s", p.ID, &p.errors)
}
