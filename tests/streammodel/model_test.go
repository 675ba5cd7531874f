package streammodel

import (
	"os"
	"reflect"
	"strconv"
	"testing"
	"time"
)

// configs returns the configurations to explore. Without a mutation, Explore must find no fault in them. Each mutation
// names the configuration in which Explore must find a fault.
func configs() []Config {
	one := Config{Capacity: 1, Slots: 2, Producers: 1, Consumers: 1, Blocks: 2, Versions: 32, Most: 5_000_000, Frames: [2]int{3}}
	joins := []task{{join, 0}}
	ends := []task{{join, 0}, {closeChannel, 0}}
	round := []task{{join, 0}, {otherChange, 0}}
	first, all := [2]bool{true}, [2]bool{true, true}
	with := func(name string, script []task, change func(*Config)) Config {
		c := one
		c.Name = name
		c.Script = script
		change(&c)
		return c
	}
	queue := func(c *Config) { c.Queue, c.Joined, c.Consumers = true, all, 2 }
	return []Config{
		with("blocks", joins, func(c *Config) { c.Frames[0] = 5; c.Drain = true }),
		with("blocks, close", ends, func(c *Config) { c.Drain = true }),
		with("blocks, destroy", []task{{join, 0}, {destroy, 0}}, func(c *Config) { c.Drain = true }),
		with("blocks, leave", joins, func(c *Config) { c.Leave[0] = true; c.Drain = true }),
		with("blocks, expel", []task{{join, 0}, {expel, 0}}, func(c *Config) { c.Leave[0] = true; c.Drain = true }),
		with("blocks, death", ends, func(c *Config) { c.Deaths = 1; c.Drain = true; c.Frames[0] = 2 }),
		with("blocks, fails", ends, func(c *Config) { c.Fails = 1; c.Drain = true }),
		with("blocks, passes", joins, func(c *Config) { c.Frames[0] = 4; c.Passes = true; c.Leave[0] = true; c.Drain = true }),
		with("blocks, passes, expel", []task{{join, 0}, {expel, 0}}, func(c *Config) { c.Passes = true; c.Drain = true }),
		with("blocks, passes, death", ends, func(c *Config) { c.Passes = true; c.Deaths = 1; c.Frames[0] = 2; c.Drain = true }),
		with("GPU, passes", nil, func(c *Config) { c.Joined = first; c.Blocks = 3; c.Frames[0] = 5; c.GPU = true; c.Passes = true }),
		with("blocks, capacity 2", joins, func(c *Config) {
			c.Capacity, c.Slots, c.Blocks, c.Frames[0] = 2, 4, 3, 5
			c.Oldest = true
			c.Drain = true
		}),
		with("two that block", []task{{join, 1}}, func(c *Config) { c.Joined = first; c.Consumers = 2 }),
		with("blocks and drops", []task{{join, 1}}, func(c *Config) { c.Joined = first; c.Consumers = 2; c.Policies[1] = dropOldest }),
		with("two producers", nil, func(c *Config) { c.Frames = [2]int{2, 1}; c.Joined = first; c.Producers = 2; c.Drain = true }),
		with("two producers, two that block", nil, func(c *Config) {
			c.Frames = [2]int{1, 1}
			c.Joined = all
			c.Producers, c.Consumers = 2, 2
		}),
		with("two producers, capacity 2", nil, func(c *Config) {
			c.Capacity, c.Slots, c.Frames = 2, 4, [2]int{2, 1}
			c.Joined = first
			c.Producers = 2
		}),
		with("two producers, join", joins, func(c *Config) { c.Frames = [2]int{2, 1}; c.Producers = 2; c.Blocks = 1 }),
		with("two producers, death", nil, func(c *Config) { c.Frames = [2]int{1, 1}; c.Joined = first; c.Producers = 2; c.Deaths = 1 }),
		with("two producers, nobody there", nil, func(c *Config) {
			c.Frames = [2]int{3, 3}
			c.Blocks = 1
			c.Producers, c.Consumers = 2, 0
		}),
		with("two producers, turns", nil, func(c *Config) { c.Joined = first; c.Producers = 2; c.Frames = [2]int{2, 1}; c.Turns = true }),
		with("two producers, turns, death", nil, func(c *Config) {
			c.Joined = first
			c.Producers = 2
			c.Frames = [2]int{1, 1}
			c.Turns = true
			c.Deaths = 1
		}),
		with("heir", []task{{joinProducer, 1}}, func(c *Config) {
			c.Joined = first
			c.Producers = 2
			c.Frames = [2]int{2, 2}
			c.Heir = true
			c.Deaths = 1
		}),
		with("heir, gives up", []task{{joinProducer, 1}, {join, 1}}, func(c *Config) {
			c.Joined = first
			c.Producers, c.Consumers = 2, 2
			c.Policies[0] = dropOldest
			c.Frames = [2]int{1, 1}
			c.Oldest = true
			c.Heir, c.GivesUp = true, true
			c.Deaths = 1
		}),
		with("heir, gives up, capacity 2", []task{{joinProducer, 1}}, func(c *Config) {
			c.Capacity, c.Slots, c.Blocks = 2, 4, 3
			c.Joined = first
			c.Producers = 2
			c.Frames = [2]int{2, 2}
			c.Heir, c.GivesUp = true, true
			c.Deaths = 1
		}),
		with("versions come round", round, func(c *Config) { c.Versions = 2; c.Misses = true; c.Frames[0] = 4 }),
		with("versions come round, drops", round, func(c *Config) { c.Versions = 2; c.Policies[0] = dropOldest; c.Frames[0] = 4 }),
		with("drops", joins, func(c *Config) { c.Blocks = 3; c.Frames[0] = 4; c.Policies[0] = dropOldest; c.Drain = true }),
		with("drops, expel", []task{{expel, 0}}, func(c *Config) { c.Joined = first; c.Policies[0] = dropOldest; c.Leave[0] = true; c.Drain = true }),
		with("drops, close", ends, func(c *Config) { c.Policies[0] = dropOldest; c.Drain = true }),
		with("drops, destroy", []task{{destroy, 0}}, func(c *Config) { c.Joined = first; c.Policies[0] = dropOldest; c.Drain = true }),
		with("drops, death", nil, func(c *Config) {
			c.Joined = first
			c.Policies[0] = dropOldest
			c.Deaths = 1
			c.Drain = true
			c.Frames[0] = 2
		}),
		with("latest", nil, func(c *Config) {
			c.Joined = first
			c.Capacity, c.Slots, c.Blocks, c.Frames[0] = 2, 4, 3, 4
			c.Policies[0] = latest
		}),
		with("GPU", nil, func(c *Config) { c.Joined = first; c.Blocks = 3; c.Frames[0] = 7; c.GPU = true }),
		with("GPU, drops", joins, func(c *Config) { c.Blocks = 3; c.Frames[0] = 5; c.Policies[0] = dropOldest; c.GPU = true }),
		with("queue, join", joins, func(c *Config) { c.Queue = true; c.Requeue = 1; c.Drain = true }),
		with("queue, join, one block", joins, func(c *Config) { c.Queue = true; c.Blocks = 1; c.Frames[0] = 2 }),
		with("queue, two", nil, func(c *Config) { queue(c) }),
		with("queue, requeue", nil, func(c *Config) { queue(c); c.Frames[0] = 2; c.Requeue = 1 }),
		with("queue, one block", nil, func(c *Config) { queue(c); c.Blocks = 1; c.Frames[0] = 2 }),
		with("queue, hoard", nil, func(c *Config) { queue(c); c.Blocks = 4; c.Frames[0] = 4; c.Hoards = true }),
		with("queue, hoard, drops", nil, func(c *Config) {
			queue(c)
			c.Consumers = 1
			c.Blocks = 4
			c.Frames[0] = 4
			c.Full = dropOldest
			c.Hoards = true
		}),
		with("queue, close", []task{{closeChannel, 0}}, func(c *Config) { queue(c); c.Frames[0] = 1 }),
		with("queue, close, join", []task{{closeChannel, 0}, {join, 0}}, func(c *Config) { c.Queue = true; c.Requeue = 1; c.Drain = true }),
		with("queue, close, death, join", []task{{closeChannel, 0}, {join, 1}}, func(c *Config) {
			queue(c)
			c.Joined = first
			c.Blocks, c.Frames[0] = 1, 1
			c.Deaths = 1
		}),
		with("queue, destroy", []task{{destroy, 0}}, func(c *Config) { queue(c); c.Consumers = 1; c.Drain = true }),
		with("queue, death", nil, func(c *Config) { queue(c); c.Frames[0] = 1; c.Deaths = 1; c.Drain = true }),
		with("queue, drops", nil, func(c *Config) { queue(c); c.Consumers = 1; c.Full = dropOldest; c.Drain = true }),
		with("queue, latest", nil, func(c *Config) {
			queue(c)
			c.Consumers = 1
			c.Capacity, c.Slots, c.Blocks = 2, 4, 3
			c.Full = latest
		}),
		with("queue, two producers", nil, func(c *Config) { queue(c); c.Consumers = 1; c.Frames = [2]int{1, 1}; c.Producers = 2 }),
		with("queue, expel", []task{{expel, 0}}, func(c *Config) { queue(c); c.Frames[0] = 1; c.Requeue = 1 }),
		with("queue, fails", nil, func(c *Config) { queue(c); c.Consumers = 1; c.Fails = 1; c.Frames[0] = 2; c.Drain = true }),
	}
}

// skipUnderRaceDetector skips tests that take minutes with the race detector. An exploration has only one goroutine, so
// it has no races.
func skipUnderRaceDetector(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes the exploration slow and finds nothing in it: make test-model runs it without")
	}
}

// TestEveryInterleavingHolds explores every configuration. The environment variable
// POOLBRIDGE_MODEL_FRAMES says how many more frames the first producer publishes.
func TestEveryInterleavingHolds(t *testing.T) {
	skipUnderRaceDetector(t)
	more := 0
	if text := os.Getenv("POOLBRIDGE_MODEL_FRAMES"); text != "" {
		var err error
		if more, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range configs() {
		c.Frames[0] += more
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			r := Explore(c)
			t.Logf("%s: %d states, %d ends, %v", c.Name, r.States, r.Ends, time.Since(began).Round(time.Millisecond))
			if r.Fault != "" {
				t.Fatal(r)
			}
			if r.Ends == 0 {
				t.Fatal("no way through it ends")
			}
		})
	}
}

// The model compares states by their bytes, so a state must not have padding.
func TestAStateHasNoOtherBytesThanItsFields(t *testing.T) {
	var check func(reflect.Type) uintptr
	check = func(k reflect.Type) (n uintptr) {
		switch k.Kind() {
		case reflect.Struct:
			for i := range k.NumField() {
				n += check(k.Field(i).Type)
			}
		case reflect.Array:
			n = uintptr(k.Len()) * check(k.Elem())
		case reflect.Int8, reflect.Bool:
			n = 1
		default:
			t.Errorf("%v is neither int8 nor bool", k)
		}
		return n
	}
	if k := reflect.TypeFor[state](); check(k) != k.Size() {
		t.Errorf("the fields have %d bytes, a state %d", check(k), k.Size())
	}
}
