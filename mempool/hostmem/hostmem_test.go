package hostmem

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

const (
	mib = 1 << 20
	gib = 1 << 30
)

// tree is a folder with the files of a machine that has 32 GiB of memory, of which 20 GiB are left. A test can add files and replace files.
type tree struct {
	testing.TB
	root string
}

func newTree(t testing.TB, files map[string]string) tree {
	t.Helper()
	tr := tree{t, t.TempDir()}
	tr.write("proc/meminfo", meminfo(32*gib, 20*gib))
	tr.write("proc/self/cgroup", "0::/\n")
	tr.write("proc/self/mountinfo", "23 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n")
	for path, text := range files {
		tr.write(path, text)
	}
	return tr
}

func (t tree) write(path, text string) {
	t.Helper()
	path = filepath.Join(t.root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
}

func (t tree) bounds() []Bound {
	t.Helper()
	bounds, err := newSystem(t.root).bounds()
	require.NoError(t, err)
	return bounds
}

func meminfo(total, available uint64) string {
	return fmt.Sprintf("MemTotal:       %d kB\nMemFree:        17 kB\nMemAvailable:   %d kB\nSwapFree: 99999999 kB\n", total>>10, available>>10)
}

// groupV2 returns the files of a v2 group that uses 1 GiB and 300 MiB, of which the kernel can reclaim 300 MiB.
func groupV2(dir, limit, high string) map[string]string {
	return map[string]string{
		dir + "/memory.max": limit + "\n", dir + "/memory.high": high + "\n", dir + "/memory.current": fmt.Sprintln(gib + 300*mib),
		dir + "/memory.stat": fmt.Sprintf("anon 1\nfile 9\ninactive_file %d\nactive_file %d\nslab_reclaimable %d\n", 100*mib, 150*mib, 50*mib),
	}
}

func groupV1(dir string, limit uint64) map[string]string {
	return map[string]string{
		dir + "/memory.limit_in_bytes": fmt.Sprintln(limit), dir + "/memory.usage_in_bytes": fmt.Sprintln(gib + 300*mib),
		dir + "/memory.stat": fmt.Sprintf("inactive_file 7\nactive_file 7\ntotal_inactive_file %d\ntotal_active_file %d\n", 100*mib, 200*mib),
	}
}

func join(all ...map[string]string) map[string]string {
	sum := make(map[string]string)
	for _, one := range all {
		for k, v := range one {
			sum[k] = v
		}
	}
	return sum
}

const (
	mountV2 = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1 = "34 31 0:31 / /sys/fs/cgroup/cpu rw shared:5 - cgroup cgroup rw,cpu\n" +
		"35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
	unlimitedV1 = 9223372036854771712
)

var machine = Bound{Name: "the machine", Total: 32 * gib, Left: 20 * gib}

func TestAMachineWithoutControlGroupsHasItsOwnMemory(t *testing.T) {
	assert.Equal(t, []Bound{machine}, newTree(t, nil).bounds())
}

func TestEveryLimitOfEveryGroupAboveCounts(t *testing.T) {
	dir := "/sys/fs/cgroup/a.slice"
	tr := newTree(t, join(
		map[string]string{"proc/self/cgroup": "0::/a.slice/b.service\n", "proc/self/mountinfo": mountV2},
		groupV2(dir, fmt.Sprint(8*gib), fmt.Sprint(6*gib)), groupV2(dir+"/b.service", "max", fmt.Sprint(3*gib))))
	assert.ElementsMatch(t, []Bound{machine,
		{dir + "/memory.max", 8 * gib, 7 * gib},
		{dir + "/memory.high", 6 * gib, 5 * gib},
		{dir + "/b.service/memory.high", 3 * gib, 2 * gib},
	}, tr.bounds(), "memory of files that could be given up counts as left")
}

func TestLimitsOfVersionOneCount(t *testing.T) {
	dir := "/sys/fs/cgroup/memory/jobs"
	tr := newTree(t, join(
		map[string]string{"proc/self/cgroup": "4:memory:/jobs/7\n1:cpu:/other\n0::/\n", "proc/self/mountinfo": mountV1},
		groupV1("/sys/fs/cgroup/memory", unlimitedV1), groupV1(dir, 8*gib), groupV1(dir+"/7", unlimitedV1)))
	assert.Equal(t, []Bound{machine, {dir + "/memory.limit_in_bytes", 8 * gib, 7 * gib}}, tr.bounds())
}

func TestBothVersionsAtOnceCountByThemselves(t *testing.T) {
	v1Dir, v2Dir := "/sys/fs/cgroup/memory/x", "/sys/fs/cgroup/unified/x"
	tr := newTree(t, join(
		map[string]string{"proc/self/cgroup": "4:cpu,memory:/x\n0::/x\n", "proc/self/mountinfo": strings.Replace(mountV1, "rw,memory", "rw,cpu,memory", 1) +
			strings.Replace(mountV2, "/sys/fs/cgroup", "/sys/fs/cgroup/unified", 1)},
		groupV1(v1Dir, 8*gib), groupV2(v2Dir, fmt.Sprint(5*gib), "max")))
	assert.Equal(t, []Bound{machine, {v1Dir + "/memory.limit_in_bytes", 8 * gib, 7 * gib}, {v2Dir + "/memory.max", 5 * gib, 4 * gib}}, tr.bounds())
}

// In a container, the mount point of the control groups shows the container's own group. The file /proc/self/cgroup may contain the whole
// path of the group, or only the part below the container's group.
func TestAContainersGroupIsFoundBelowWhatItsMountShows(t *testing.T) {
	for _, c := range []struct{ name, root, group, dir string }{
		{"own namespace", "/", "/", "/sys/fs/cgroup"},
		{"own namespace, a group below", "/", "/init", "/sys/fs/cgroup/init"},
		{"the host's namespace", "/docker/0af3", "/docker/0af3", "/sys/fs/cgroup"},
		{"the host's namespace, a group below", "/docker/0af3", "/docker/0af3/init", "/sys/fs/cgroup/init"},
		{"a path with white space", `/my\040pod`, "/my pod/init", "/sys/fs/cgroup/init"},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTree(t, join(map[string]string{"proc/self/cgroup": "0::" + c.group + "\n",
				"proc/self/mountinfo": strings.Replace(mountV2, "0:28 /", "0:28 "+c.root, 1)}, groupV2(c.dir, fmt.Sprint(2*gib), "max")))
			assert.Equal(t, []Bound{machine, {c.dir + "/memory.max", 2 * gib, gib}}, tr.bounds())
		})
	}
}

func TestAGroupThatNoMountShowsCountsForNothing(t *testing.T) {
	for _, c := range []struct{ root, group string }{{"/", "/../other"}, {"/docker/0af3", "/docker/0af"}, {"/docker/0af3", "/docker/0af34"}, {"/x", "/"}} {
		tr := newTree(t, join(map[string]string{"proc/self/cgroup": "0::" + c.group + "\n",
			"proc/self/mountinfo": strings.Replace(mountV2, "0:28 /", "0:28 "+c.root, 1)}, groupV2("/sys/fs/cgroup", fmt.Sprint(2*gib), "max")))
		assert.Equal(t, []Bound{machine}, tr.bounds(), "%v", c)
	}
}

func TestAGroupOverItsLimitHasNothingLeft(t *testing.T) {
	tr := newTree(t, join(map[string]string{"proc/self/mountinfo": mountV2}, groupV2("/sys/fs/cgroup", "4096", "0")))
	assert.Equal(t, []Bound{machine, {"/sys/fs/cgroup/memory.max", 4096, 0}, {"/sys/fs/cgroup/memory.high", 0, 0}}, tr.bounds())
}

func TestWhatTheSystemSaysOtherwiseIsAnErrorThatNamesTheFile(t *testing.T) {
	group := groupV2("/sys/fs/cgroup", fmt.Sprint(2*gib), "max")
	for path, text := range map[string]string{
		"proc/meminfo": "MemTotal: 1 kB\n", "proc/self/mountinfo": "one two\n", "proc/self/cgroup": "0\n",
		"/sys/fs/cgroup/memory.max": "lots\n", "/sys/fs/cgroup/memory.current": "-1\n", "/sys/fs/cgroup/memory.stat": "inactive_file many\n",
	} {
		tr := newTree(t, join(map[string]string{"proc/self/mountinfo": mountV2}, group, map[string]string{path: text}))
		assert.ErrorContains(t, At(tr.root).Fits(1), path)
		assert.ErrorContains(t, At(tr.root).Take(1, 1, nil), path)
	}
}

func TestTheTightestLimitIsNamed(t *testing.T) {
	tr := newTree(t, join(map[string]string{"proc/self/mountinfo": mountV2}, groupV2("/sys/fs/cgroup", fmt.Sprint(16*gib), "max")))
	m := At(tr.root)
	require.NoError(t, m.Fits(15*gib))
	err := m.Fits(15*gib + 1)
	require.ErrorAs(t, err, new(*Shortage))
	assert.EqualError(t, err, "16106127361 bytes (15 GiB) are asked for, and at most 15 GiB can ever be available: "+
		"/sys/fs/cgroup/memory.max has 16 GiB, and 1 GiB of them are left to others; ask for fewer")
	err = m.Take(14*gib+1, gib, nil)
	require.ErrorAs(t, err, new(*Shortage))
	assert.EqualError(t, err, "15032385537 bytes (14 GiB) are asked for, and 14 GiB are available: "+
		"/sys/fs/cgroup/memory.max has 15 GiB left of 16 GiB, and 1 GiB of them are left to others; ask for fewer, or free memory")
	tr.write("proc/meminfo", meminfo(32*gib, 2*gib))
	assert.ErrorContains(t, m.Take(gib+1, gib, nil), "the machine has 2 GiB left of 32 GiB")
}

func TestMemoryIsTakenInParts(t *testing.T) {
	var parts [][2]uint64
	require.NoError(t, At(newTree(t, nil).root).Take(10, 4, func(off, n uint64) error {
		parts = append(parts, [2]uint64{off, n})
		return nil
	}))
	assert.Equal(t, [][2]uint64{{0, 4}, {4, 4}, {8, 2}}, parts)
}

func TestMemoryThatOthersTakeMeanwhileIsMissed(t *testing.T) {
	tr := newTree(t, nil)
	m := At(tr.root)
	took := 0
	err := m.Take(8*gib, 2*gib, func(uint64, uint64) error {
		took++
		tr.write("proc/meminfo", meminfo(32*gib, []uint64{18, 4}[took-1]*gib))
		return nil
	})
	short := new(Shortage)
	require.ErrorAs(t, err, &short)
	assert.Equal(t, 2, took)
	assert.EqualValues(t, 8*gib, short.Asked)
	assert.EqualValues(t, 7*gib, short.Available, "4 were taken, and 3 are left")
	require.NoError(t, m.Take(3*gib, 3*gib, func(uint64, uint64) error { return nil }), "nothing is claimed any more")
}

func TestTwoWhoTakeAtOnceDoNotCountOnTheSameMemory(t *testing.T) {
	tr := newTree(t, nil)
	m := At(tr.root)
	require.NoError(t, m.Take(10*gib, 5*gib, func(off, _ uint64) error {
		left := 10*gib - off
		tr.write("proc/meminfo", meminfo(32*gib, left+6*gib))
		assert.ErrorAs(t, m.Take(5*gib+1, gib, nil), new(*Shortage), "5 GiB are available besides what is claimed")
		return nil
	}))
}

func TestLittleMemoryIsTakenWithoutAskingEachTime(t *testing.T) {
	tr := newTree(t, nil)
	m := At(tr.root)
	none := func(uint64, uint64) error { return nil }
	require.NoError(t, m.Take(mib, mib, none))
	tr.write("proc/meminfo", "")
	assert.NoError(t, m.Take(mib, mib, none))
	assert.Error(t, m.Take(gib, mib, none), "much is not")
}

func TestThisMachineSaysWhatItHas(t *testing.T) {
	bounds, err := newSystem("/").bounds()
	require.NoError(t, err)
	for _, b := range bounds {
		t.Logf("%+v", b)
		assert.LessOrEqual(t, b.Left, b.Total)
	}
	assert.NotZero(t, bounds[0].Left)
}

func BenchmarkAsk(b *testing.B) {
	s := newSystem("/")
	for b.Loop() {
		if _, err := s.bounds(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTakeLittle(b *testing.B) {
	m := New()
	for b.Loop() {
		if err := m.Take(4096, 4096, func(uint64, uint64) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

// withoutDescriptors calls f while this process has no free descriptor.
func withoutDescriptors(t *testing.T, f func()) {
	t.Helper()
	var was unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &was))
	first, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(first) + 1, Max: was.Max}))
	all := []int{first}
	for err == nil {
		var fd int
		if fd, err = unix.FcntlInt(uintptr(first), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			all = append(all, fd)
		}
	}
	f()
	for _, fd := range all {
		require.NoError(t, unix.Close(fd))
	}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &was))
	require.ErrorIs(t, err, unix.EMFILE)
}

func TestMemoryIsKnownWithoutAFreeDescriptor(t *testing.T) {
	tr := newTree(t, groupV2("sys/fs/cgroup/a", fmt.Sprint(8*gib), "max"))
	tr.write("proc/self/cgroup", "0::/a\n")
	tr.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	m := At(tr.root)
	before, err := m.system.bounds()
	require.NoError(t, err)
	require.Len(t, before, 2)
	withoutDescriptors(t, func() {
		now, err := m.system.bounds()
		assert.NoError(t, err)
		assert.Equal(t, before, now)
		assert.NoError(t, m.Take(1<<20, 1<<20, func(uint64, uint64) error { return nil }))
	})
	m.Close()
	withoutDescriptors(t, func() { assert.ErrorIs(t, m.Fits(1), unix.EMFILE) })
	require.NoError(t, m.Fits(1), "after Close, the files are opened again")
	m.Close()
}

func TestAProcessThatChangesItsGroupReadsTheFilesOfTheNewGroup(t *testing.T) {
	tr := newTree(t, groupV2("sys/fs/cgroup/a", fmt.Sprint(8*gib), "max"))
	for path, text := range groupV2("sys/fs/cgroup/b", fmt.Sprint(4*gib), "max") {
		tr.write(path, text)
	}
	tr.write("proc/self/cgroup", "0::/a\n")
	tr.write("proc/self/mountinfo", "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
	m := At(tr.root)
	defer m.Close()
	_, err := m.system.bounds()
	require.NoError(t, err)
	tr.write("proc/self/cgroup", "0::/b\n")
	now, err := m.system.bounds()
	require.NoError(t, err)
	assert.EqualValues(t, 4*gib, now[1].Total)
	for path := range m.system.files.open {
		assert.NotContains(t, path, "/cgroup/a/")
	}
}
