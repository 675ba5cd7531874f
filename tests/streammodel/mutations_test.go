package streammodel

import "testing"

// A mutation is a change of the protocol that causes a fault. Explore must find the fault.
type mutation struct{ name, config string }

func mutations() []mutation {
	return []mutation{
		{"nobody helps", "two producers, capacity 2"},
		{"the entry is stored before the swap", "two producers"},
		{"seq is not 0 while the record is written", "drops"},
		{"the swap does not look at the version", "blocks"},
		{"the roster is read once", "blocks"},
		{"only the version in the tail is looked at", "versions come round, drops"},
		{"floors are not looked at for room", "blocks"},
		{"floors are not looked at", "blocks, close"},
		{"a kept frame is used again", "two producers, join"},
		{"holds are not looked at", "drops"},
		{"no hold", "drops"},
		{"no second look after the hold", "drops"},
		{"the count of holds is raised too late", "drops"},
		{"the own seat is not looked at again", "blocks, expel"},
		{"the own seat is not looked at again", "drops, destroy"},
		{"the own seat is not looked at again", "queue, destroy"},
		{"what those that left have taken is not looked at", "blocks, expel"},
		{"a consumer that leaves moves its floor before its hold", "blocks, leave"},
		{"a consumer that passes a frame moves its floor before its hold", "blocks, passes"},
		{"the holds of those that block are not looked at", "blocks, passes"},
		{"the holds of those that block are not looked at", "blocks, leave"},
		{"holds are looked at before floors", "blocks, expel"},
		{"the seat of a consumer is free at once", "blocks, leave"},
		{"no second look before sleep", "blocks"},
		{"nobody is woken for room", "blocks"},
		{"nobody is woken for a frame", "blocks"},
		{"publishing wakes no producer", "two producers, nobody there"},
		{"the service wakes nobody", "blocks, close"},
		{"the service wakes nobody", "two producers, death"},
		{"a futex word is moved on by a store", "two producers"},
		{"a joiner does not look again", "blocks"},
		{"a joiner begins after the newest frame", "blocks"},
		{"the end is taken before the version is in the tail", "blocks, close"},
		{"the seat of a producer is free at once", "heir"},
		{"frames are given up that nobody has released", "heir, gives up, capacity 2"},
		{"a joiner begins with a frame that was given up", "heir, gives up"},
		{"a frame that failed is not released", "blocks, fails"},
		{"a frame that failed is not released", "queue, fails"},
		{"what the channel keeps of the dead is not looked at", "blocks, death"},
		{"what consumers have of the dead is not looked at", "drops, death"},
		{"only the done entry of the number itself counts", "GPU"},
		{"a done entry is overwritten while its work runs", "GPU"},
		{"a done entry that is being written counts as none", "GPU"},
		{"nobody is woken at the end of a turn", "two producers, turns"},
		{"a void has an entry", "queue, two"},
		{"the slot of a number may be in use", "queue, two"},
		{"voids without end", "queue, hoard"},
		{"a frame that nobody has taken needs no slot", "queue, two"},
		{"claims are not looked at", "queue, two"},
		{"a consumer that joins while claims are looked at is not seen", "queue, join, one block"},
		{"nobody is woken for a claim", "queue, hoard"},
		{"nobody is woken for a frame that was requeued", "queue, expel"},
		{"a hold that was for nothing wakes nobody", "queue, one block"},
		{"nobody is woken for the end", "queue, close"},
		{"nobody joins a closed queue", "queue, close, death, join"},
		{"the claims of the dead are not requeued", "queue, death"},
		{"records are as many as frames that are kept", "drops"},
	}
}

func TestEveryMutationIsFound(t *testing.T) {
	skipUnderRaceDetector(t)
	named := map[string]Config{}
	for _, c := range configs() {
		named[c.Name] = c
	}
	for _, u := range mutations() {
		t.Run(u.name+"/"+u.config, func(t *testing.T) {
			t.Parallel()
			c := named[u.config]
			if c.Name == "" {
				t.Fatal("no such configuration")
			}
			c.Mutant, c.Most = u.name, 3_000_000
			if u.name == "records are as many as frames that are kept" {
				c.Slots = c.Capacity
			}
			r := Explore(c)
			if r.Fault == "" || r.Trace == nil {
				t.Fatalf("%s: %s is not found in %d states", u.config, u.name, r.States)
			}
			t.Logf("%s: %s: %d states, %d steps: %s", u.config, u.name, r.States, len(r.Trace), r.Fault)
		})
	}
}
