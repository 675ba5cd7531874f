package streammodel

// The largest channel that a [state] can describe. Configurations are smaller.
const (
	mostSlots     = 4 // N
	mostProducers = 2
	mostConsumers = 2
	mostBlocks    = 4 // of one producer
	mostFrames    = 9 // of the channel, with voids
)

type policy int8

const (
	block policy = iota
	dropOldest
	latest
)

func (p policy) drops() bool { return p != block }

// States of a slot of the roster.
const (
	free int8 = iota
	active
	left
)

// States of the channel.
const (
	open int8 = iota
	closing
	closed
	destroyed
)

// Tags of a claim.
const (
	givenBack int8 = iota
	acknowledged
	claimedBy // + slot of the consumer
)

// void is the producer slot in the tail of a number that was never published.
const void int8 = 63

type tail struct{ number, slot, version int8 }

type entry struct{ number, slot int8 }

type record struct{ seq, block int8 }

type claim struct{ number, tag int8 }

type done struct{ number, value, word int8 }

// shared is the memory that the members and the service share. Every field of a [state] is one byte, so that states can be compared by bytes.
type shared struct {
	tail      tail
	published int8 // futex word: bit 0 says that a member sleeps
	freed     int8
	version   int8 // of the roster
	state     int8
	end       int8
	head      int8
	tickets   int8
	first     int8 // the service has given up the frames before this number

	producerSlots [mostProducers]int8
	owners        [mostProducers]int8 // which producer has the slot
	waiting       [mostProducers]int8
	slots         [mostConsumers]int8
	start         [mostConsumers]int8

	order   [mostSlots]entry
	claims  [mostSlots]claim
	records [mostProducers][mostSlots]record
	floor   [mostConsumers]int8
	next    [mostConsumers]int8
	used    [mostConsumers]int8
	hold    [mostConsumers]int8
	done    [mostConsumers][mostSlots]done

	content [mostProducers * mostBlocks]int8 // of each block: which frame of which producer was written into it
}

// futex names a word on which members sleep.
type futex int8

const (
	none      futex = 0
	published futex = 1
	freed     futex = 2
	both      futex = 3
)

// sleeper is the private state of a member that is about to sleep.
type sleeper struct {
	on    futex
	armed bool // it has set bit 0, or found it set, and looks once more
	seen  int8 // value of the word then
}

// survey is the state of a walk over the slots of a queue.
type survey struct {
	head, n, count, open int8
	first                int8 // number of the oldest frame that waits
	claim                claim
}

// producer is the private state of a producer.
type producer struct {
	pc      pc
	sleep   sleeper
	dead    bool
	wakes   futex // the futexes that it still has to wake
	loaded  int8
	tail    tail // as last loaded
	state   int8 // of the channel, as last loaded
	known   int8 // version of the roster whose slots it has read
	view    [mostConsumers]int8
	survey  survey
	i       int8
	ticket  int8
	passed  bool // it has let the other producer go first for long enough
	block   int8 // with the content of the next frame; -1: none
	written int8 // frames that it has written
	limit   int8 // frames up to this number left the channel
	gone    [mostBlocks]bool
	busy    [mostBlocks]bool
	flying  [mostBlocks]int8
	value   [mostConsumers][mostBlocks]int8 // of the fence for which the next writer of the block waits
}

// consumer is the private state of a consumer.
type consumer struct {
	pc       pc
	sleep    sleeper
	dead     bool
	wakes    futex
	loaded   int8
	then     pc // next step after it has woken others
	said     bool
	ends     bool // it does not take part any more
	failed   bool
	settled  bool // the claim is acknowledged or requeued
	tail     tail
	survey   survey
	n        int8 // the number that it takes
	owner    int8 // the producer that it takes from
	block    int8
	next     int8
	last     int8 // the number that it took last
	returned int8 // frames that it requeued
	failures int8
	issued   int8    // pieces of work on the GPU
	reached  [2]int8 // for each word, the last piece of work that is done
}

// service is the private state of the service.
type service struct {
	pc    pc
	then  pc
	step  int8 // of the script
	tail  tail
	who   int8 // the member that it works on
	i     int8
	keeps [mostBlocks]bool
	freed [mostProducers]bool // the blocks of the dead producer are used again
}

// ghost is the state of the checks, which no actor sees.
type ghost struct {
	frames [mostFrames + 1]int8            // content of each number
	acked  [mostFrames + 1]int8            // how often each was acknowledged
	uses   [mostConsumers]int8             // 1 + the block that a consumer uses now
	mine   [mostConsumers]int8             // number that a consumer of a queue has claimed
	gpu    [mostConsumers][mostFrames]int8 // 1 + the block of each piece of work
	deaths int8
}

// state is one moment of the model.
type state struct {
	shared
	producers [mostProducers]producer
	cons      [mostConsumers]consumer
	service   service
	ghost     ghost
}
