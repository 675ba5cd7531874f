package streammodel

// pc is the step that an actor takes next.
type pc string

// Steps of a producer.
const (
	pWrite       pc = "write the content into a free block"
	pTail        pc = "load the tail"
	pState       pc = "read the roster's state"
	pSlots       pc = "read a slot of the roster"
	pRoom        pc = "load a floor for room"
	pWaiting     pc = "look at the claims for room"
	pDropOne     pc = "acknowledge the oldest that waits"
	pVoid        pc = "swap the tail to a void number"
	pHelp        pc = "help with the entry before"
	pRecordClear pc = "store seq 0"
	pRecordBlock pc = "store the record"
	pRecordSeq   pc = "store seq"
	pSwap        pc = "swap the tail"
	pEntry       pc = "store the entry"
	pBell        pc = "load published"
	pRing        pc = "swap published and wake"
	pOldest      pc = "load the tail to have a block back"
	pFloors      pc = "load a floor to have a block back"
	pClaim       pc = "load the claim to have a block back"
	pHolds       pc = "load a hold to have a block back"
	pArm         pc = "load freed"
	pArmSwap     pc = "set bit 0 of freed"
	pSleep       pc = "sleep on freed"
	pDone        pc = "done"
	pClosed      pc = "the channel is closed"
)

// Steps of a consumer.
const (
	cOutside   pc = "not a member yet"
	cTail      pc = "load the tail"
	cHold      pc = "store a hold"
	cHoldTail  pc = "load the tail after the hold"
	cEntry     pc = "load the entry"
	cSeq       pc = "load seq"
	cBlock     pc = "load the record"
	cSeqAgain  pc = "load seq again"
	cOutrun    pc = "load the tail after a seq that is wrong"
	cNext      pc = "store next"
	cUse       pc = "begin to use the block"
	cUsed      pc = "end to use the block"
	cRelease   pc = "release"
	cUnhold    pc = "clear the hold"
	cClaims    pc = "look for a claim"
	cClaim     pc = "swap the claim"
	cAck       pc = "acknowledge"
	cGiveBack  pc = "give back"
	cHead      pc = "move head"
	cEnding    pc = "read the roster's state after an acknowledgement"
	cBell      pc = "load the futex of the others"
	cRing      pc = "swap it and wake"
	cState     pc = "read the roster's state"
	cStateTail pc = "load the tail after the roster's state"
	cArm       pc = "load published"
	cArmSwap   pc = "set bit 0 of published"
	cSleep     pc = "sleep on published"
	cLeaving   pc = "wants to leave"
	cDone      pc = "done"
)

// Steps of the service.
const (
	sNext       pc = "look for something to do"
	sJoinTail   pc = "load the tail for a joiner"
	sJoinFloor  pc = "store start and floor"
	sJoinActive pc = "store the state active and the version"
	sJoinSwap   pc = "swap the version in the tail for a joiner"
	sGone       pc = "free the slot of a consumer"
	sClaims     pc = "give a claim of the dead back"
	sVersion    pc = "store the version"
	sSwap       pc = "swap the version in the tail"
	sClosing    pc = "store the state closing"
	sEnd        pc = "store end and the state closed"
	sBell       pc = "load a futex"
	sRing       pc = "swap it and wake"
)
