package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "c.yaml")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// read reads a file with the keys of this test.
func read(path string) (*File, error) {
	text, err := Load(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, text, func(section string) []string {
		return map[string][]string{"": {"socket", "http", "limits", "access", "pools", "a", "c", "d"}, "socket": {"mode"}, "http": {"address", "pprof"}, "limits": {"sessions"},
			"access": {"creators"}, "a": {"b", "c"}, "c": {"d"}, "pools": {"name", "gid", "uid", "max"}}[section]
	})
}

func TestAWrongKeyIsToldOnceWithTheNearestRightKey(t *testing.T) {
	for text, want := range map[string]string{
		"htpp: {address: x, pprof: true}\n":        "1: htpp: there is no such key: did you mean http?",
		"htpp: 3\n":                                "1: htpp: there is no such key: did you mean http?",
		"http:\n  addr-ess: x\n":                   "2: http.addr-ess: there is no such key: did you mean http.address?",
		"http:\n  tls: {certificate: x}\n":         "2: http.tls: there is no such key: expected one of http.address, http.pprof",
		"colours: red\n":                           "1: colours: there is no such key: expected one of socket, http, limits, access, pools, a, c, d",
		"pools:\n  - {name: x, gdi: 4}\n":          `2: pool "x": gdi: there is no such key: did you mean gid?`,
		"pools:\n  - {name: x, size: 4, max: 1}\n": `2: pool "x": size: there is no such key: expected one of name, gid, uid, max`,
	} {
		path := file(t, text)
		_, err := read(path)
		assert.EqualError(t, err, path+":"+want)
	}
	f, _ := read(file(t, "socket: {moed: 1}\npools:\n  - {nam: x}\n"))
	assert.Equal(t, []Value{{Key: "socket.mode", Line: 1, Broken: true}}, f.Values, "nobody says that it is missing")
	assert.Equal(t, []Value{{Key: "name", Line: 3, Broken: true}}, f.Pools[0].Values)
}

func TestValuesAreReadAsTheyStandWithTheirLines(t *testing.T) {
	f, err := read(file(t, `
# a comment
socket:
  mode: 0660
http:
limits: {sessions: 10}
access:
  creators: [1000, 1001]
pools:
  - name: frames
    gid: 44
  - {name: "other", uid: []}
`))
	require.NoError(t, err)
	assert.Equal(t, []Value{{Key: "socket.mode", Line: 4, Texts: []string{"0660"}}, {Key: "limits.sessions", Line: 6, Texts: []string{"10"}},
		{Key: "access.creators", Line: 8, Texts: []string{"1000", "1001"}}}, f.Values)
	assert.Equal(t, []Item{{`pool "frames"`, 10, []Value{{Key: "name", Line: 10, Texts: []string{"frames"}}, {Key: "gid", Line: 11, Texts: []string{"44"}}}},
		{`pool "other"`, 12, []Value{{Key: "name", Line: 12, Texts: []string{"other"}}, {Key: "uid", Line: 12}}}}, f.Pools)
}

func TestWhatStandsBesideAMistakeIsReadAllTheSame(t *testing.T) {
	f, err := read(file(t, `
socket: 1
http:
  address: {a: 1}
  pprof: true
  pprof: false
pools:
  - text
  - {name: a, max: [[1]]}
`))
	var problems Problems
	require.ErrorAs(t, err, &problems)
	assert.Len(t, problems, 5, "%v", err)
	assert.Equal(t, []Value{{Key: "http.address", Line: 4, Broken: true}, {Key: "http.pprof", Line: 5, Texts: []string{"true"}}}, f.Values)
	assert.Equal(t, []Item{{`pool "a"`, 9, []Value{{Key: "name", Line: 9, Texts: []string{"a"}}, {Key: "max", Line: 9, Broken: true}}}}, f.Pools)
}

func TestOfVeryManyMistakesTheFirstAreTold(t *testing.T) {
	var all Problems
	for n := range 10_000 {
		all.Add("f", n+1, "odd")
	}
	lines := strings.Split(all.Err().Error(), "\n")
	assert.Equal(t, []string{"f:100: odd", "and 9900 more"}, lines[len(lines)-2:])
}

func TestAnEmptyFileIsOne(t *testing.T) {
	for _, text := range []string{"", "# nothing\n", "---\n", "pools:\n"} {
		f, err := read(file(t, text))
		require.NoError(t, err, text)
		assert.Empty(t, f.Values)
		assert.Empty(t, f.Pools)
	}
}

func TestABrokenFileIsToldByLineAndReason(t *testing.T) {
	for text, want := range map[string][]string{
		"socket:\n  path: a: b\n":            {":2: this is no YAML: mapping values are not allowed"},
		"socket:\n  path: [a\n":              {":3: this is no YAML"},
		"- a\n":                              {`:1: the configuration: expected keys with values (key: value), not a list`},
		"text":                               {`:1: the configuration: expected keys with values (key: value), not "text"`},
		"http: 1\n":                          {`:1: http: expected keys with values (key: value), not "1"`},
		"http:\n  address:\n":                {":2: http.address: expected a value, or a list of values, not nothing"},
		"http:\n  address: {a: 1}\n":         {"not keys with values"},
		"a: &x {b: 1}\nc: *x\n":              {":2: c: expected keys with values (key: value), not an alias"},
		"a:\n  b: &x 1\n  c: *x\n":           {":3: a.c: expected a value, or a list of values, not an alias"},
		"pools: {name: a}\n":                 {":1: pools: expected a list, each pool with - before it, not keys with values"},
		"pools:\n  - a\n":                    {`:2: pool 1 of the list: expected keys with values (key: value), not "a"`},
		"? [a]\n: b\n":                       {":1: the configuration: expected a key, not a list"},
		"a: {b: 1}\n---\nc: {d: 1}\n":        {":2: a second document"},
		"a:\n  b: 1\n  b: 2\na:\n  c: 1\nd:": {":3: a: b is given twice, first in line 2", ":4: the configuration: a is given twice, first in line 1"},
	} {
		path := file(t, text)
		_, err := read(path)
		var problems Problems
		require.ErrorAs(t, err, &problems, text)
		require.Len(t, problems, len(want), "%v", err)
		for i := range want {
			assert.Contains(t, problems[i].Error(), want[i], text)
			assert.True(t, strings.HasPrefix(problems[i].Error(), path), "%v", problems[i])
		}
	}
}

func TestAFileThatOthersMayChangeIsRefused(t *testing.T) {
	for _, mode := range []os.FileMode{0o620, 0o602, 0o666} {
		path := file(t, "")
		require.NoError(t, os.Chmod(path, mode))
		_, err := read(path)
		require.ErrorContains(t, err, path+": users other than its owner may change it")
	}
	if os.Geteuid() == 0 {
		path := file(t, "")
		require.NoError(t, os.Chown(path, 4242, 4242))
		_, err := read(path)
		require.ErrorContains(t, err, "user 4242 owns it")
	}
}

func TestWhatIsNoFileIsRefused(t *testing.T) {
	_, err := read(t.TempDir())
	require.ErrorContains(t, err, "expected a regular file")
	_, err = read(filepath.Join(t.TempDir(), "missing"))
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = read(file(t, strings.Repeat("#", maxBytes+1)))
	require.ErrorContains(t, err, "at most 1048576")
}
