package streammodel

// The greatest sizes of a channel that a [state] can describe. No configuration is larger.
const (
	mostSlots     = 4 // the N of docs/streams.md
	mostProducers = 2
	mostConsumers = 2
	mostBlocks    = 4 // of each producer
	mostFrames    = 9 // numbers of a channel, including voids
)

type policy int8

const (
	block policy = iota
	dropOldest
	latest
)

func (p policy) drops() bool { return p != block }

// The states of a seat in the roster.
const (
	free int8 = iota
	active
	left
)

// The states of the channel.
const (
	open int8 = iota
	closing
	closed
	destroyed
)

// The tags of a claim.
const (
	givenBack int8 = iota
	acknowledged
	claimedBy // claimedBy + c is the tag of consumer c
)

// void is the producer seat in a tail whose number has no frame.
const void int8 = 63

type tail struct{ number, seat, version int8 }

type entry struct{ number, seat int8 }

type record struct{ seq, block int8 }

type claim struct{ number, tag int8 }

type done struct{ number, value, word int8 }

// shared is the memory that the members and the service share. Every field of a [state] is one byte, so that Go code can compare states
// byte by byte.
type shared struct {
	tail      tail
	published int8 // futex word: bit 0 says that a member sleeps
	freed     int8
	version   int8 // version of the roster
	state     int8
	end       int8
	head      int8
	tickets   int8
	first     int8 // the service has given up the frames before this number

	producerSeats [mostProducers]int8
	owners        [mostProducers]int8 // the producer that has each seat
	waiting       [mostProducers]int8
	seats         [mostConsumers]int8
	start         [mostConsumers]int8

	order   [mostSlots]entry
	claims  [mostSlots]claim
	records [mostProducers][mostSlots]record
	floor   [mostConsumers]int8
	next    [mostConsumers]int8
	used    [mostConsumers]int8
	hold    [mostConsumers]int8
	done    [mostConsumers][mostSlots]done

	content [mostProducers * mostBlocks]int8 // for each block, the frame and the producer that were written into the block
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
	armed bool // bit 0 of the word is set, and the member checks the channel once more before it sleeps
	seen  int8 // value of the word when the member set bit 0
}

// survey is the state of a walk over the slots of a queue.
type survey struct {
	head, n, count, open int8
	first                int8 // number of the frame that has waited longest
	claim                claim
}

// producer is the private state of a producer.
type producer struct {
	pc      pc
	sleep   sleeper
	dead    bool
	wakes   futex // the futexes that the producer still has to wake
	loaded  int8
	tail    tail // the tail as the producer last loaded it
	state   int8 // state of the channel as the producer last loaded it
	known   int8 // version of the roster whose seats the producer has read
	view    [mostConsumers]int8
	survey  survey
	i       int8
	ticket  int8
	passed  bool // the producer does not wait for the other producer any longer
	block   int8 // the block with the content of the next frame; -1: none
	written int8 // number of frames that the producer has written
	limit   int8 // frames up to this number have left the channel
	gone    [mostBlocks]bool
	busy    [mostBlocks]bool
	flying  [mostBlocks]int8
	value   [mostConsumers][mostBlocks]int8 // value of the fence that the block's next writer waits for
}

// consumer is the private state of a consumer.
type consumer struct {
	pc       pc
	sleep    sleeper
	dead     bool
	wakes    futex
	loaded   int8
	then     pc // the step after the consumer has woken other members
	said     bool
	ends     bool // the consumer does not take part any more
	failed   bool
	settled  bool // the consumer has acknowledged or requeued the claim
	tail     tail
	survey   survey
	n        int8 // the number that the consumer takes
	owner    int8 // the producer of the frame that the consumer takes
	block    int8
	next     int8
	last     int8 // the number that the consumer took last
	returned int8 // number of frames that the consumer requeued
	failures int8
	issued   int8    // number of the consumer's pieces of work on the GPU
	reached  [2]int8 // for each word, the last piece of work that is done
}

// service is the private state of the service.
type service struct {
	pc    pc
	then  pc
	step  int8 // index of the next task in the script
	tail  tail
	who   int8 // the member that the task is about
	i     int8
	keeps [mostBlocks]bool
	freed [mostProducers]bool // the service has freed the blocks of the dead producer
}

// ghost is the state that only the checks use. No actor sees it.
type ghost struct {
	frames [mostFrames + 1]int8            // content of each number
	acked  [mostFrames + 1]int8            // how many times each number was acknowledged
	uses   [mostConsumers]int8             // 1 + the block that each consumer uses now; 0: none
	mine   [mostConsumers]int8             // number that each consumer of a queue has claimed
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
