package streammodel

// pc is the step that an actor takes next.
type pc int8

const (
	// Steps of a producer.
	pOutside pc = iota
	pWrite
	pTail
	pVersion
	pSeats
	pHelp
	pRoom
	pSurvey
	pDrop
	pResident
	pSkip
	pVoid
	pTurn
	pTicket
	pRecordClear
	pRecordBlock
	pRecordSeq
	pSwap
	pEntry
	pEndTurn
	pWake
	pWoken
	pBackState
	pBackTail
	pBackVersion
	pBackSeats
	pBackFloors
	pBackClaim
	pBackTailAgain
	pBackVersionAgain
	pBackSeatsAgain
	pBackHold
	pBackDone
	pArm
	pSleep
	pDone

	// Steps of a consumer.
	cOutside
	cTail
	cUsed
	cHold
	cOwn
	cHoldTail
	cEntry
	cSeq
	cBlock
	cSeqAgain
	cOutrun
	cNext
	cUse
	cDoneClear
	cDoneValue
	cDoneNumber
	cRelease
	cEndHold
	cClaim
	cSettle
	cEnding
	cWake
	cWoken
	cState
	cArm
	cSleep
	cPassHold
	cPassFloor
	cLeaveHold
	cLeaveFloor
	cSaid
	cDone

	// Steps of the service.
	sNext
	sJoinTail
	sJoinStart
	sActive
	sVersion
	sJoinSwap
	sSwap
	sPublished
	sFreed
	sLeft
	sFree
	sClosing
	sClosed
	sDestroy
	sClaims
	sProducerLeft
	sProducerFree
	sKept
	sHolds
	sBlocks
)

var names = [...]string{
	pOutside:          "is no member yet",
	pWrite:            "writes the content into a free block",
	pTail:             "loads the tail",
	pVersion:          "loads version and state",
	pSeats:            "reads the seats of the roster",
	pHelp:             "helps with the entry of the tail",
	pRoom:             "looks at the floors for room",
	pSurvey:           "looks at a slot of the queue",
	pDrop:             "drops the frame that waits longest",
	pResident:         "looks whether the slot is free",
	pSkip:             "looks whether any slot is free",
	pVoid:             "swaps the tail to a void",
	pTurn:             "looks whether another goes first",
	pTicket:           "takes a ticket",
	pRecordClear:      "stores seq 0",
	pRecordBlock:      "stores the record",
	pRecordSeq:        "stores seq",
	pSwap:             "swaps the tail",
	pEntry:            "stores the entry",
	pEndTurn:          "gives its ticket back",
	pWake:             "moves a futex word on, if somebody sleeps",
	pWoken:            "wakes",
	pBackState:        "loads the state, for a block",
	pBackTail:         "loads the tail, for a block",
	pBackVersion:      "loads the version, for a block",
	pBackSeats:        "reads the seats of the roster, for a block",
	pBackFloors:       "looks at floors, for a block",
	pBackClaim:        "looks at a claim, for a block",
	pBackTailAgain:    "loads the tail after the claims, for a block",
	pBackVersionAgain: "loads the version after the claims, for a block",
	pBackSeatsAgain:   "reads the seats of the roster after the claims, for a block",
	pBackHold:         "looks at a hold, for a block",
	pBackDone:         "looks at the done entries, for a block",
	pArm:              "sets bit 0 of freed",
	pSleep:            "sleeps on freed if it has not moved",
	pDone:             "has ended",

	cOutside:    "is no member yet",
	cTail:       "loads the tail",
	cUsed:       "raises the count of holds",
	cHold:       "stores a hold",
	cOwn:        "looks at its own seat and the state",
	cHoldTail:   "loads the tail after the hold",
	cEntry:      "loads the entry",
	cSeq:        "loads seq",
	cBlock:      "loads the record",
	cSeqAgain:   "loads seq again",
	cOutrun:     "loads the tail after what it found is wrong",
	cNext:       "stores next",
	cUse:        "uses the frame",
	cDoneClear:  "stores done: number 0",
	cDoneValue:  "stores done: value and word",
	cDoneNumber: "stores done: the number",
	cRelease:    "stores the floor",
	cEndHold:    "clears the hold",
	cClaim:      "swaps the claim",
	cSettle:     "acknowledges or requeues",
	cEnding:     "loads the state after that",
	cWake:       "moves a futex word on, if somebody sleeps",
	cWoken:      "wakes",
	cState:      "loads its own seat and the state",
	cArm:        "sets bit 0 of published",
	cSleep:      "sleeps on published if it has not moved",
	cPassHold:   "stores a hold to pass the frame",
	cPassFloor:  "stores the floor to pass the frame",
	cLeaveHold:  "stores a hold to leave",
	cLeaveFloor: "stores the floor to leave",
	cSaid:       "says that it leaves",
	cDone:       "has ended",

	sNext:         "looks for something to do",
	sJoinTail:     "loads the tail for a joiner",
	sJoinStart:    "stores start, floor and next",
	sActive:       "stores the state active",
	sVersion:      "stores the version",
	sJoinSwap:     "swaps the version in the tail for a joiner",
	sSwap:         "stores the version in the tail",
	sPublished:    "moves published on and wakes",
	sFreed:        "moves freed on and wakes",
	sLeft:         "stores that a consumer has left",
	sFree:         "frees the seat of a consumer",
	sClosing:      "stores the state closing",
	sClosed:       "stores end and the state closed",
	sDestroy:      "stores the state destroyed",
	sClaims:       "gives a claim of the dead back",
	sProducerLeft: "stores that a producer has left",
	sProducerFree: "frees the seat of a producer",
	sKept:         "looks which blocks of the dead are kept",
	sHolds:        "looks which blocks of the dead a consumer has",
	sBlocks:       "uses the other blocks of the dead",
}

func (p pc) String() string { return names[p] }
