package streammodel

// The largest channel that a [state] can describe. Configurations are smaller.
const (
	mostSlots     = 8 // N
	mostProducers = 2
	mostConsumers = 2
	mostHolds     = 2
	mostBlocks    = 5 // of one producer
	mostFrames    = 8 // of the channel
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
)

// Tags of a claim.
const (
	givenBack int8 = iota
	acknowledged
	claimedBy // + slot of the consumer
)

// void is the producer of a number that was never published.
const void int8 = 63

type tail struct{ number, producer, version int8 }

type entry struct{ number, producer int8 }

type record struct{ seq, block int8 }

type claim struct{ number, tag int8 }

type hold struct{ number, block int8 }

// slot is what the roster says of a consumer.
type slot struct {
	state  int8
	policy policy
}

// shared is the memory that the members and the service share.
type shared struct {
	tail      tail
	published int8 // futex word: bit 0 says that somebody sleeps
	freed     int8
	version   int8 // of the roster
	state     int8
	end       int8
	head      int8

	consumers [mostConsumers]slot
	order     [mostSlots]entry
	claims    [mostSlots]claim
	records   [mostProducers][mostSlots]record
	floor     [mostConsumers]int8
	next      [mostConsumers]int8
	holds     [mostConsumers][mostHolds]hold

	content [mostProducers * mostBlocks]int8 // of each block: which frame of which producer was written into it
}

// sleeper says for what an actor sleeps.
type sleeper int8

const (
	awake sleeper = iota
	onPublished
	onFreed
)

// producer is what one producer knows by itself.
type producer struct {
	pc      pc
	sleep   sleeper
	dead    bool
	armed   bool // it set bit 0 of freed, or found it set, and looks once more
	seen    int8 // of the futex word
	tail    tail // as it was loaded last
	known   int8 // version of the roster that it has read
	reading int8 // version that it is reading
	view    [mostConsumers]slot
	i, j    int8
	block   int8 // with the content of the next frame; -1: none
	written int8 // frames that it has written
	number  int8 // of the frame that it looks at to have its block back
	flying  [mostBlocks]int8
}

// consumer is what one consumer knows by itself.
type consumer struct {
	pc       pc
	sleep    sleeper
	dead     bool
	armed    bool
	wakes    bool // it gave something back: consumers are woken, not producers
	seen     int8
	tail     tail
	n        int8 // the number that it takes
	producer int8
	block    int8
	next     int8
	state    int8 // of the channel, as it was loaded last
	last     int8 // number that it took last
	returned int8 // frames that it gave back
	takes    int8 // frames that it has used
}

// service is what the service knows by itself.
type service struct {
	pc      pc
	step    int8 // of the script
	tail    tail
	who     int8 // the member that it works on
	i       int8
	cleaned [mostProducers + mostConsumers]bool
	wake    int8 // 0: published, 1: freed
	seen    int8
}

// ghost is what the checks remember and nobody in the model knows.
type ghost struct {
	frames [mostFrames + 1]int8 // content of each number
	acked  [mostFrames + 1]int8 // how often it was acknowledged
	uses   [mostConsumers]int8  // 1 + the block that a consumer reads now
	start  [mostConsumers]int8  // the number that it was promised as its first
	deaths int8
}

// state is one moment of the model. It is comparable, so that a moment that was seen is not explored twice.
type state struct {
	shared
	producers [mostProducers]producer
	cons      [mostConsumers]consumer
	service   service
	ghost     ghost
}
