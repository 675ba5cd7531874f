package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/poolbridge/poolbridge/bridge"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/config"
	"github.com/poolbridge/poolbridge/cmd/poolsvc/internal/metrics"
	"github.com/poolbridge/poolbridge/mempool"
)

// plan has the settings of serve, from the command line, the environment and the configuration file.
type plan struct {
	file     string // path of the configuration file; "": no file
	text     []byte // of that file; nil: it was not read
	socket   string
	mode     os.FileMode
	creators []uint32
	limits   limits
	pools    []mempool.PoolSpec
	web      web
	log      logging
	made     []string // names of pools that the service before has made; nil: the settings are not its

	source   place            // the place of the settings that are being read
	from     map[string]place // the place of each setting, limit and pool; keys: "mode", "limit sessions", "pool frames"
	broken   map[string]bool  // flags of the settings with a wrong value
	problems config.Problems
}

// place is the origin of a setting: a flag, an environment variable, or a line of the configuration file.
type place struct {
	name string
	line int // 0: the place has no line
}

func (at place) String() string {
	if at.line == 0 {
		return at.name
	}
	return fmt.Sprintf("%s:%d", at.name, at.line)
}

// wrong adds a problem at a place.
func (p *plan) wrong(at place, format string, args ...any) {
	p.problems.Add(at.name, at.line, format, args...)
}

// note stores the place of a setting, a limit or a pool.
func (p *plan) note(what string) {
	if p.from != nil {
		p.from[what] = p.source
	}
}

// logging has the level and the format of the log.
type logging struct {
	json  bool
	level slog.Level
}

// handler returns a handler that writes the messages with this level or a higher level.
func (l logging) handler(w io.Writer, level slog.Leveler) slog.Handler {
	options := &slog.HandlerOptions{Level: level}
	if l.json {
		return slog.NewJSONHandler(w, options)
	}
	return slog.NewTextHandler(w, options)
}

// setting describes a setting. A flag, an environment variable and the configuration file can give the value of the
// setting.
type setting struct {
	flag, key   string // the names of the setting on the command line and in the file
	kind, usage string
	standard    string // the default value
	// set reads the value in text, and adds it to the plan.
	set func(p *plan, text string) error
	// reset removes the values from places with a lower priority; nil: set replaces the value, and there is nothing to remove.
	reset func(p *plan)
	// show returns, as text, the value that a plan has for the setting. It is nil for pools and limits, because other code shows each pool and
	// each limit.
	show func(p *plan) string
	// fixed says that the setting cannot change while the service runs.
	fixed bool
}

// variable returns the name of the setting's environment variable.
func (s setting) variable() string {
	return "POOLBRIDGE_" + strings.ToUpper(strings.ReplaceAll(s.flag, "-", "_"))
}

const poolUsage = "name=NAME,max=SIZE[,kind=host|device|vmm|legacy|pinned][,device=N|UUID][,session=SIZE][,user=SIZE][,uid=N][,gid=N]"

// settings returns all settings. In the configuration file, the list "pools" has one element for each pool, and a limit has a key such as
// limits.sessions.
func settings() []setting {
	return []setting{
		{flag: "socket", key: "socket.path", kind: "path", usage: "path of the service's socket", standard: bridge.DefaultSocket(),
			set: func(p *plan, text string) error {
				p.socket = text
				return nil
			}, show: func(p *plan) string { return p.socket }, fixed: true},
		{flag: "mode", key: "socket.mode", kind: "mode", usage: "file mode of the socket, octal", standard: "0600", set: (*plan).setMode,
			show: func(p *plan) string { return fmt.Sprintf("%#o", p.mode) }, fixed: true},
		{flag: "pool", key: "pools", kind: "pool", usage: "make a pool, may be repeated: " + poolUsage, set: func(p *plan, text string) error {
			spec, err := parsePool(text)
			if err != nil {
				return err
			}
			return p.addPool(spec)
		}},
		{flag: "creator", key: "access.creators", kind: "uid", usage: "ids of other users who may make pools, and destroy those that they may use",
			set: func(p *plan, text string) (err error) {
				for id := range strings.SplitSeq(text, ",") {
					if p.creators, err = appendID(p.creators, id); err != nil {
						return err
					}
				}
				return nil
			}, reset: func(p *plan) { p.creators = nil }, show: func(p *plan) string { return strings.Trim(fmt.Sprint(p.creators), "[]") }},
		{flag: "limit", key: "limits", kind: "NAME=N", usage: "limit how much state clients can cause, may be repeated: NAME=N, of " +
			strings.Join(limitNames(), ", "), set: func(p *plan, text string) error {
			for one := range strings.SplitSeq(text, ",") {
				name, err := p.limits.set(one)
				if err != nil {
					return err
				}
				p.note("limit " + name)
			}
			return nil
		}},
		{flag: "http", key: "http.address", kind: "address",
			usage: "serve a page for people, /metrics for Prometheus, /healthz and /readyz at HOST:PORT, or at unix:PATH for this user only",
			set: func(p *plan, text string) error {
				p.web.address = text
				return nil
			}, show: func(p *plan) string { return p.web.address }, fixed: true},
		{flag: "http-allow-remote", key: "http.allow-remote", kind: "bool", usage: "allow an address for --http that other machines can reach",
			standard: "false", set: func(p *plan, text string) error { return setBool(&p.web.remote, text) },
			show: func(p *plan) string { return fmt.Sprint(p.web.remote) }, fixed: true},
		{flag: "pprof", key: "http.pprof", kind: "bool", usage: "serve profiles of the service at /debug/pprof/ too", standard: "false",
			set:  func(p *plan, text string) error { return setBool(&p.web.profile, text) },
			show: func(p *plan) string { return fmt.Sprint(p.web.profile) }, fixed: true},
		{flag: "log-format", key: "log.format", kind: "text|json", usage: "format of the log's lines: text or JSON", standard: "text",
			set: func(p *plan, text string) error {
				if text != "text" && text != "json" {
					return fmt.Errorf("%q is no log format: expected text or json", text)
				}
				p.log.json = text == "json"
				return nil
			}, show: func(p *plan) string { return map[bool]string{false: "text", true: "json"}[p.log.json] }, fixed: true},
		{flag: "log-level", key: "log.level", kind: "level", usage: "lowest level that is logged: debug (events of sessions too), info, warn or error",
			standard: "info", set: func(p *plan, text string) error {
				levels := map[string]slog.Level{"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError}
				level, ok := levels[text]
				if !ok {
					return fmt.Errorf("%q is no level of a log: expected debug, info, warn or error", text)
				}
				p.log.level = level
				return nil
			}, show: func(p *plan) string { return strings.ToLower(p.log.level.String()) }},
	}
}

func setBool(to *bool, text string) error {
	if text != "true" && text != "false" {
		return fmt.Errorf("expected true or false, not %q", text)
	}
	*to = text == "true"
	return nil
}

func (p *plan) setMode(text string) error {
	mode, err := strconv.ParseUint(text, 8, 9)
	if err != nil {
		return fmt.Errorf("%q is no file mode: expected octal digits such as 0660", text)
	}
	p.mode = os.FileMode(mode)
	return nil
}

// addPool adds a pool to the plan. If the plan has a pool with the same name from a place with a lower priority (such as the
// configuration file), the new pool replaces it.
func (p *plan) addPool(spec mempool.PoolSpec) error {
	what := "pool " + spec.Name
	if p.from != nil && p.from[what] == p.source {
		return fmt.Errorf("two pools have the name %q", spec.Name)
	}
	p.pools = slices.DeleteFunc(p.pools, func(other mempool.PoolSpec) bool { return other.Name == spec.Name })
	p.pools = append(p.pools, spec)
	p.note(what)
	return nil
}

// said is the pflag.Value of a setting. It keeps the texts that the command line gives for the setting.
type said struct {
	setting
	texts []string
}

func (s *said) String() string { return strings.Join(s.texts, " ") }
func (s *said) Type() string   { return s.kind }

func (s *said) Set(text string) error {
	if err := s.set(new(plan), text); err != nil {
		return err
	}
	s.texts = append(s.texts, text)
	return nil
}

// planFlags adds a flag for each setting to the flags of a command.
func planFlags(f *pflag.FlagSet) {
	for _, s := range settings() {
		flag := f.VarPF(&said{setting: s}, s.flag, "", s.usage)
		flag.DefValue = s.standard
		if s.kind == "bool" {
			flag.NoOptDefVal = "true"
		}
	}
	f.BoolP("verbose", "v", false, "the same as --log-level debug")
	f.String("config", os.Getenv("POOLBRIDGE_CONFIG"), "configuration file; flags and variables POOLBRIDGE_… override it")
}

// planArguments returns the flags of planFlags that the command line has.
func planArguments(f *pflag.FlagSet) (all []string) {
	f.Visit(func(flag *pflag.Flag) {
		texts := []string{flag.Value.String()}
		if s, ok := flag.Value.(*said); ok {
			texts = s.texts
		} else if flag.Name != "config" && flag.Name != "verbose" {
			return
		}
		for _, text := range texts {
			all = append(all, fmt.Sprintf("--%s=%s", flag.Name, text))
		}
	})
	return all
}

// newPlan returns a plan that has the default values.
func newPlan() *plan {
	p := &plan{from: make(map[string]place), broken: make(map[string]bool)}
	for _, s := range settings() {
		p.from[s.flag] = place{name: "default"}
		if s.standard != "" {
			_ = s.set(p, s.standard) // set never refuses a default
		}
	}
	return p
}

// resolve makes a plan from the flags, the environment and the configuration file. A flag overrides an environment variable, and both
// override the configuration file. The argument `text` is the content of the file; nil: resolve reads the file.
//
// Errors: [config.Problems]; errors of the file system.
func resolve(f *pflag.FlagSet, text []byte) (*plan, error) {
	p := newPlan()
	p.text = text
	var err error
	if p.file, err = f.GetString("config"); err != nil {
		return nil, err
	}
	all := settings()
	if p.file != "" {
		if err := p.read(p.file); err != nil {
			return nil, err
		}
	}
	for _, s := range all {
		if text := os.Getenv(s.variable()); text != "" {
			p.say(s, place{name: "$" + s.variable()}, "", text)
		}
	}
	for _, s := range all {
		if f.Changed(s.flag) {
			p.say(s, place{name: "--" + s.flag}, "", f.Lookup(s.flag).Value.(*said).texts...)
		}
	}
	if verbose, _ := f.GetBool("verbose"); verbose {
		if f.Changed("log-level") {
			return nil, &usageError{"--verbose and --log-level exclude each other: expected one of them"}
		}
		p.log.level, p.from["log-level"] = slog.LevelDebug, place{name: "--verbose"}
	}
	return p, p.check()
}

// check returns all problems of the plan. It also finds a setting that needs another setting, if this other setting is missing, and two
// settings that contradict each other. It compares two settings only if both have correct values.
//
// Errors: [config.Problems].
func (p *plan) check() error {
	if at := p.from["socket"]; at.line > 0 && !filepath.IsAbs(p.socket) {
		p.wrong(at, "socket.path: %q is no absolute path (/…): a relative one would depend on the folder in which the service starts", p.socket)
	}
	at := p.from["http"]
	path, unix := strings.CutPrefix(p.web.address, "unix:")
	switch {
	case p.broken["http"]:
	case p.web.address == "":
		const needs = "%s needs http.address (--http), which is missing: add http.address 127.0.0.1:9377, for example"
		if p.web.remote {
			p.wrong(p.from["http-allow-remote"], needs, "http.allow-remote")
		}
		if p.web.profile {
			p.wrong(p.from["pprof"], needs, "http.pprof")
		}
	case at.line > 0 && unix && !filepath.IsAbs(path):
		p.wrong(at, "http.address: %q is no absolute path (unix:/…): a relative one would depend on the folder in which the service starts", p.web.address)
	default:
		if err := metrics.CheckAddress(p.web.address, p.web.remote || p.broken["http-allow-remote"]); err != nil {
			p.wrong(at, "http.address: %v", err)
		}
	}
	return p.problems.Err()
}

// say adds to the plan all values that one place (such as a flag) gives for a setting. If the setting refuses a value, the method `say`
// adds a problem whose text begins with `what`.
func (p *plan) say(s setting, at place, what string, texts ...string) {
	if s.reset != nil {
		s.reset(p)
	}
	p.source, p.broken[s.flag] = at, false
	for _, text := range texts {
		if err := s.set(p, text); err != nil {
			p.wrong(at, "%s%v", what, err)
			p.broken[s.flag] = true
		}
	}
	p.note(s.flag)
}

// read adds the settings of a configuration file to the plan. It reads the file unless the plan has the file's text. If the text has problems, the
// method `read` adds them to the plan, and [plan.check] returns them.
//
// Errors: errors of the file system; a [config.Problem] if other users may change the file.
func (p *plan) read(path string) (err error) {
	if p.text == nil {
		if p.text, err = config.Load(path); err != nil {
			return err
		}
	}
	file, err := config.Parse(path, p.text, keysOf)
	var problems config.Problems
	if err != nil && !errors.As(err, &problems) {
		return err
	}
	p.problems = append(p.problems, problems...)
	for _, v := range file.Values {
		p.value(place{path, v.Line}, v)
	}
	for _, item := range file.Pools {
		p.pool(place{path, item.Line}, item)
	}
	return nil
}

// value adds one value of a file to the plan.
func (p *plan) value(at place, v config.Value) {
	name, limit := strings.CutPrefix(v.Key, "limits.")
	for _, s := range settings() {
		switch {
		case limit && s.key == "limits":
			for i := range v.Texts {
				if strings.Contains(v.Texts[i], ",") { // a comma would start the value of another limit
					p.wrong(at, "%s: expected a number, not %q", v.Key, v.Texts[i])
					p.broken[s.flag] = true
					return
				}
				v.Texts[i] = name + "=" + v.Texts[i]
			}
		case s.key != v.Key:
			continue
		}
		switch {
		case v.Broken: // the reader of the file has already added a problem
			p.broken[s.flag] = true
		case s.reset == nil && len(v.Texts) != 1:
			p.wrong(at, "%s: expected one value, not %d", v.Key, len(v.Texts))
			p.broken[s.flag] = true
		default:
			p.say(s, at, v.Key+": ", v.Texts...)
		}
		return
	}
}

// keysOf returns the keys of a section of a configuration file. For "", it returns the names of the sections.
func keysOf(section string) (names []string) {
	switch section {
	case "limits":
		return limitNames()
	case "pools":
		return poolKeys
	}
	for _, s := range settings() {
		of, name, _ := strings.Cut(s.key, ".")
		switch {
		case section == "" && !slices.Contains(names, of):
			names = append(names, of)
		case section == of:
			names = append(names, name)
		}
	}
	return names
}

// pool adds a pool from a file to the plan.
func (p *plan) pool(at place, item config.Item) {
	var pool poolText
	lines, refused := make(map[string]int), make(map[string]bool)
	wrong := func(key, format string, args ...any) {
		refused[key] = true
		where := at
		if line, ok := lines[key]; ok {
			where.line = line
		}
		p.wrong(where, "%s: "+format, append([]any{item.Called}, args...)...)
	}
	for _, v := range item.Values {
		lines[v.Key] = v.Line
		switch {
		case v.Broken: // the reader of the file has already added a problem
			refused[v.Key] = true
			continue
		case len(v.Texts) != 1 && v.Key != "uid" && v.Key != "gid":
			wrong(v.Key, "%s: expected one value, not %d", v.Key, len(v.Texts))
			continue
		}
		for _, text := range v.Texts {
			if err := pool.set(v.Key, text); err != nil {
				wrong(v.Key, "%v", err)
			}
		}
	}
	said, err := pool.spec()
	if err != nil {
		mistakes(said, refused, wrong)
	}
	if first, twice := p.from["pool "+said.Name]; twice {
		wrong("name", "two pools have this name, the first at %v", first)
	}
	if said.Name != "" {
		p.source = at
		p.note("pool " + said.Name)
	}
	if len(refused) == 0 {
		p.pools = append(p.pools, said)
	}
}

// mistakes calls the function `wrong` for each wrong value of the pool `said`. It begins with another pool, which is valid, and puts the
// values of `said` into this pool one by one. If a value makes this pool invalid, the function `mistakes` calls `wrong` and removes the
// value from this pool.
func mistakes(said mempool.PoolSpec, refused map[string]bool, wrong func(key, format string, args ...any)) {
	right := mempool.PoolSpec{Name: "?", Kind: mempool.Host, MaxBytes: math.MaxInt64}
	for _, value := range []struct {
		key string
		put func(*mempool.PoolSpec)
	}{
		{"name", func(s *mempool.PoolSpec) { s.Name = said.Name }},
		{"kind", func(s *mempool.PoolSpec) { s.Kind = said.Kind }},
		{"device", func(s *mempool.PoolSpec) { s.Device = said.Device }},
		{"max", func(s *mempool.PoolSpec) { s.MaxBytes = said.MaxBytes }},
		{"user", func(s *mempool.PoolSpec) { s.UserBytes = said.UserBytes }},
		{"session", func(s *mempool.PoolSpec) { s.SessionBytes = said.SessionBytes }},
	} {
		if refused[value.key] || value.key == "device" && refused["kind"] {
			continue
		}
		next := right
		value.put(&next)
		if err := next.Validate(); err != nil {
			reason := strings.TrimPrefix(err.Error(), mempool.ErrInvalid.Error()+": ")
			wrong(value.key, "%s: %s", value.key, strings.TrimPrefix(reason, fmt.Sprintf("pool %q: ", next.Name)))
			continue
		}
		right = next
	}
}
