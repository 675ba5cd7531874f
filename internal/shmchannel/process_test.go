package shmchannel

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// killings returns how many processes each test kills. The environment variable SHMCHANNEL_TEST_KILLINGS overrides the number.
func killings(t *testing.T) int {
	if text := os.Getenv("SHMCHANNEL_TEST_KILLINGS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		return n
	}
	return 6
}

// seedOf returns the seed that the environment variable SHMCHANNEL_TEST_SEED gives, or otherwise a random seed, and prints the seed. A test
// that runs again with the same seed makes the same random choices, but the timing of the processes may differ.
func seedOf(t *testing.T) uint64 {
	seed := uint64(time.Now().UnixNano())
	if text := os.Getenv("SHMCHANNEL_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		require.NoError(t, err)
		seed = n
	}
	t.Logf("SHMCHANNEL_TEST_SEED=%d", seed)
	return seed
}

// storm is a channel whose members are killed, stopped and replaced at random moments.
type storm struct {
	*family
	random  *rand.Rand
	waiting []*Member // members that have not started yet
	running []*process
	all     []*process
}

func (s *storm) startNext(role Role) {
	s.t.Helper()
	i := slices.IndexFunc(s.waiting, func(m *Member) bool { return m.Role == role })
	require.GreaterOrEqual(s.t, i, 0)
	m := s.waiting[i]
	s.waiting = slices.Delete(s.waiting, i, i+1)
	j := job{Seed: s.random.Uint64(), Spin: []time.Duration{0, 20 * time.Microsecond}[s.random.IntN(2)]}
	if role == ProducerRole {
		for range s.host.capacity + 40 {
			j.Blocks = append(j.Blocks, s.nextPool)
			s.nextPool++
		}
	}
	p := s.start(m, j)
	s.running, s.all = append(s.running, p), append(s.all, p)
}

// kill kills a process and tells the host, as the service does.
func (s *storm) kill(p *process) {
	s.t.Helper()
	p.killed = true
	s.running = slices.DeleteFunc(s.running, func(q *process) bool { return p == q })
	if s.random.IntN(2) == 0 { // the connection of the process ends before the process does
		require.NoError(s.t, p.cmd.Process.Signal(syscall.SIGSTOP))
		require.NoError(s.t, s.host.Expel(p.member, Lost))
		time.Sleep(time.Duration(s.random.IntN(5)) * time.Millisecond)
	}
	require.NoError(s.t, p.cmd.Process.Kill())
	_ = p.cmd.Wait() // the error says that the process was killed
	require.NoError(s.t, s.host.Gone(p.member))
	s.sweep()
}

func (s *storm) sweep() {
	s.t.Helper()
	_, err := s.host.Sweep(nil, func(Fence) bool { return true })
	require.NoError(s.t, err)
}

func (s *storm) of(role Role) (all []*process) {
	for _, p := range s.running {
		if p.Role == role {
			all = append(all, p)
		}
	}
	return all
}

// rage kills and stops processes, and replaces the killed ones.
func (s *storm) rage(n int) {
	s.t.Helper()
	for range n {
		time.Sleep(time.Duration(s.random.IntN(40)) * time.Millisecond)
		stopped := s.running[s.random.IntN(len(s.running))]
		require.NoError(s.t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
		time.Sleep(time.Duration(s.random.IntN(20)) * time.Millisecond)
		victim := s.running[s.random.IntN(len(s.running))]
		role := victim.Role
		s.kill(victim)
		if victim != stopped {
			require.NoError(s.t, stopped.cmd.Process.Signal(syscall.SIGCONT))
		}
		s.startNext(role)
	}
}

// end stops the producers, closes the channel, and waits for all processes.
func (s *storm) end() {
	s.t.Helper()
	for _, p := range s.of(ProducerRole) {
		require.NoError(s.t, p.in.Encode("stop"))
	}
	for _, p := range s.of(ProducerRole) {
		p.says("stopped")
	}
	require.NoError(s.t, s.host.Close())
	for _, c := range s.of(ConsumerRole) {
		c.wait() // the consumer ends with frames in hand
		require.NoError(s.t, s.host.Leave(c.member))
		require.NoError(s.t, s.host.Gone(c.member))
	}
	s.sweep()
	for _, p := range s.of(ProducerRole) {
		p.wait()
		require.NoError(s.t, s.host.Leave(p.member))
	}
	s.sweep()
	for _, p := range s.all {
		if p.Role == ProducerRole {
			blocks, all := inUse(s.host, p.member)
			assert.False(s.t, all, "member %d", p.ID)
			assert.Empty(s.t, blocks, "member %d", p.ID)
		}
	}
	for _, role := range []Role{ProducerRole, ConsumerRole} {
		for _, m := range s.host.Members(nil, role) {
			assert.Contains(s.t, s.waiting, m, "it left, and nothing needs it")
		}
	}
}

// published returns two maps: `sure` has the contents of the frames that producers certainly published, by frame number; `perhaps` has the
// contents that producers perhaps published. A producer may die after it has published a frame and before it has written the frame into its
// ledger.
func (s *storm) published() (sure map[uint64]uint64, perhaps map[uint64]bool) {
	s.t.Helper()
	sure, perhaps = map[uint64]uint64{}, map[uint64]bool{}
	for _, p := range s.all {
		if p.Role != ProducerRole {
			continue
		}
		last, count := uint64(0), uint64(0)
		for _, l := range p.ledger.all() {
			count++
			if _, double := sure[l.number]; double || l.number <= last || l.value != p.ID<<32|count {
				s.t.Fatalf("member %d has published frame %d with %#x, its frame %d, after frame %d", p.ID, l.number, l.value, count, last)
			}
			last = l.number
			sure[l.number] = l.value
		}
		if p.killed {
			perhaps[p.ID<<32|(count+1)] = true
		}
	}
	return sure, perhaps
}

func newStorm(t *testing.T, spec Spec, producers, consumers int, policies ...Policy) *storm {
	n := killings(t)
	var members []MemberSpec
	for range producers + n {
		members = append(members, MemberSpec{Role: ProducerRole})
	}
	for i := range consumers + n {
		members = append(members, MemberSpec{Role: ConsumerRole, Policy: policies[i%len(policies)], Oldest: i%3 == 0})
	}
	if len(members)-consumers-n > MaxProducers {
		t.Fatalf("%d killings need more producers than there can be", n)
	}
	seed := seedOf(t)
	s := &storm{family: newFamily(t, spec, members...), random: rand.New(rand.NewPCG(seed, 1))}
	s.waiting = slices.Clone(s.members)
	t.Cleanup(func() {
		for _, p := range s.running { // a process is left over only if the test failed
			_ = p.cmd.Process.Kill()
			_ = p.cmd.Wait()
		}
	})
	for range consumers {
		s.startNext(ConsumerRole)
	}
	for range producers {
		s.startNext(ProducerRole)
	}
	s.rage(n)
	s.end()
	s.running = nil
	return s
}

func TestNothingIsLostInABroadcastWhoseMembersAreKilled(t *testing.T) {
	for _, policies := range [][]Policy{{Block}, {DropOldest}, {Latest}, {Block, DropOldest, Latest}} {
		for _, capacity := range []int{1, 16} {
			t.Run(fmt.Sprint(policies, capacity), func(t *testing.T) {
				s := newStorm(t, Spec{Capacity: capacity}, 3, 4, policies...)
				sure, perhaps := s.published()
				end := s.host.roster.end.Load()
				t.Logf("%d frames", end)
				require.NotZero(t, end)
				unknown := end - uint64(len(sure))
				require.LessOrEqual(t, unknown, uint64(len(perhaps)), "frames that nobody has published")
				for _, c := range s.all {
					if c.Role == ConsumerRole {
						c.checkBroadcast(sure, perhaps, end)
					}
				}
			})
		}
	}
}

// checkBroadcast checks the frames that a consumer saw. If the consumer saw a frame, a producer published this frame, so checkBroadcast
// adds the frame to the map `sure`.
func (p *process) checkBroadcast(sure map[uint64]uint64, perhaps map[uint64]bool, end uint64) {
	p.t.Helper()
	last := uint64(0)
	for i, l := range p.ledger.all() {
		v, known := sure[l.number]
		switch {
		case known && v != l.value, !known && !perhaps[l.value]:
			p.t.Fatalf("member %d saw frame %d with %#x, published with %#x", p.ID, l.number, l.value, v)
		case i > 0 && l.number != last+1+l.missed:
			p.t.Fatalf("member %d saw frame %d after %d, and was told that it missed %d", p.ID, l.number, last, l.missed)
		case p.member.policy.blocks() && l.missed != 0:
			p.t.Fatalf("member %d missed %d frames before %d", p.ID, l.missed, l.number)
		}
		sure[l.number], last = l.value, l.number
	}
	if !p.killed && last != end {
		p.t.Fatalf("member %d saw frame %d last, and %d was published", p.ID, last, end)
	}
}

func TestNothingIsLostInAQueueWhoseMembersAreKilled(t *testing.T) {
	for _, policy := range []Policy{Block, DropOldest, Latest} {
		for _, capacity := range []int{1, 16} {
			t.Run(fmt.Sprint(policy, capacity), func(t *testing.T) {
				s := newStorm(t, Spec{Mode: Queue, Capacity: capacity, Policy: policy}, 3, 4, Block)
				s.checkQueue(policy)
			})
		}
	}
}

// checkQueue checks that no frame was acknowledged twice. With the policy Block, it also checks that no frame was lost.
func (s *storm) checkQueue(policy Policy) {
	sure, perhaps := s.published()
	acknowledged, unsure, taken := map[uint64]bool{}, map[uint64]bool{}, map[uint64]bool{}
	for _, c := range s.all {
		if c.Role != ConsumerRole {
			continue
		}
		lines := c.ledger.all()
		for _, l := range lines {
			v, known := sure[l.number]
			switch {
			case known && v != l.value, !known && !perhaps[l.value]:
				s.t.Fatalf("member %d saw frame %d with %#x, published with %#x", c.ID, l.number, l.value, v)
			case l.what == didTake && policy == Block && l.missed != 0:
				s.t.Fatalf("member %d missed %d frames before %d", c.ID, l.missed, l.number)
			case l.what == didTake:
				taken[l.number] = true
			case l.what == didAcknowledge && acknowledged[l.number]:
				s.t.Fatalf("frame %d was acknowledged twice", l.number)
			case l.what == didAcknowledge:
				acknowledged[l.number] = true
			}
		}
		if n := len(lines); c.killed && n > 0 && lines[n-1].what == willAcknowledge {
			unsure[lines[n-1].number] = true
		}
	}
	dropped := 0
	for n := range sure {
		if acknowledged[n] || unsure[n] {
			continue
		}
		dropped++
		// With the other policies, the channel may have dropped the frame, even after a consumer requeued the frame.
		if policy == Block {
			s.t.Fatalf("frame %d is lost (taken: %v)", n, taken[n])
		}
	}
	s.t.Logf("%d frames, %d dropped", len(sure), dropped)
}

// A consumer whose process is stopped keeps its frames in hand. The producer does not wait for this consumer, because the consumer's policy
// is DropOldest.
func TestAConsumerThatIsStopped(t *testing.T) {
	f := newFamily(t, Spec{Capacity: 4}, MemberSpec{Role: ConsumerRole, Policy: DropOldest}, MemberSpec{Role: ProducerRole})
	stopped := f.start(f.members[0], job{Seed: 1})
	blocks := make([]uint64, 60)
	for i := range blocks {
		blocks[i] = uint64(i + 1)
	}
	p := f.start(f.members[1], job{Seed: 1, Blocks: blocks})
	grows := func(past uint64) {
		t.Helper()
		require.Eventually(t, func() bool { return p.ledger.count.Load() > past }, time.Minute, time.Millisecond)
	}
	for range 20 {
		grows(p.ledger.count.Load() + 50)
		require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGSTOP))
		grows(p.ledger.count.Load() + 200)
		require.NoError(t, stopped.cmd.Process.Signal(syscall.SIGCONT))
	}
	require.NoError(t, p.in.Encode("stop"))
	p.says("stopped")
	require.NoError(t, f.host.Close())
	stopped.wait()
	require.NoError(t, f.host.Gone(stopped.member))
	_, err := f.host.Sweep(nil, nil)
	require.NoError(t, err)
	p.wait()
}
