package streammodel

import (
	"testing"
	"time"
)

// configs hold without a mutation.
func configs() []Config {
	base := Config{Capacity: 1, Slots: 2, Producers: 1, Consumers: 1, Blocks: 3, Versions: 4, Most: 20_000_000}
	with := func(name string, change func(*Config)) Config {
		c := base
		c.Name = name
		change(&c)
		return c
	}
	return []Config{
		with("one blocking consumer", func(c *Config) {
			c.Frames[0] = 3
			c.Script = []errand{{join, 0}, {closeChannel, 0}}
		}),
		with("one blocking consumer, deaths", func(c *Config) {
			c.Frames[0] = 3
			c.Deaths = 1
			c.Script = []errand{{join, 0}, {closeChannel, 0}}
		}),
		with("one that drops", func(c *Config) {
			c.Frames[0] = 3
			c.Policies[0] = dropOldest
			c.Deaths = 1
			c.Script = []errand{{join, 0}, {closeChannel, 0}}
		}),
		with("one that wants the latest", func(c *Config) {
			c.Frames[0], c.Capacity, c.Slots = 4, 2, 4
			c.Policies[0] = latest
			c.Script = []errand{{join, 0}, {closeChannel, 0}}
		}),
		with("two consumers", func(c *Config) {
			c.Frames[0], c.Consumers = 3, 2
			c.Policies[1] = dropOldest
			c.Script = []errand{{join, 0}, {join, 1}, {closeChannel, 0}}
		}),
		with("two producers", func(c *Config) {
			c.Frames, c.Producers = [2]int{2, 2}, 2
			c.Blocks = 2
			c.Script = []errand{{join, 0}, {closeChannel, 0}}
		}),
		with("queue", func(c *Config) {
			c.Queue, c.Frames[0], c.Consumers, c.GiveBack = true, 3, 2, 1
			c.Script = []errand{{join, 0}, {join, 1}, {closeChannel, 0}}
		}),
	}
}

func TestEveryInterleavingHolds(t *testing.T) {
	for _, c := range configs() {
		t.Run(c.Name, func(t *testing.T) {
			began := time.Now()
			r := Explore(c)
			t.Logf("%d states, %d ends, %v", r.States, r.Ends, time.Since(began).Round(time.Millisecond))
			if r.Fault != "" {
				t.Fatal(r)
			}
			if r.Ends == 0 {
				t.Fatal("no way through it ends")
			}
		})
	}
}
