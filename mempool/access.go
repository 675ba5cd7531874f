package mempool

import (
	"fmt"
	"os"
	"slices"
)

// Peer identifies the process that has a session. The ids of a Peer must come from the kernel, never from that process itself.
type Peer struct {
	UID, GID uint32
	// Groups are the supplementary groups.
	Groups []uint32
	// PID serves only to inform people. No decision depends on PID.
	PID int32
	// Process is a number that no other process has at the same time. Process is 0 if the kernel cannot identify the process. A block that
	// counts for a process counts against the limit of each session of this process: see the field SessionBytes of [PoolSpec].
	Process uint64
}

func (p Peer) String() string { return fmt.Sprintf("user %d", p.UID) }

// Self returns this process as a peer.
func Self() Peer {
	groups, _ := os.Getgroups() // on failure only the primary group counts
	p := Peer{UID: uint32(os.Getuid()), GID: uint32(os.Getgid()), PID: int32(os.Getpid())}
	for _, g := range groups {
		p.Groups = append(p.Groups, uint32(g))
	}
	return p
}

// Access lists the users and groups that may use a pool. A session that may use a pool can access all memory of the pool, so the users of a
// pool must trust each other.
type Access struct {
	UIDs, GIDs []uint32
}

// Allows reports whether p may use the pool.
func (a Access) Allows(p Peer) bool {
	if slices.Contains(a.UIDs, p.UID) || slices.Contains(a.GIDs, p.GID) {
		return true
	}
	return slices.ContainsFunc(p.Groups, func(g uint32) bool { return slices.Contains(a.GIDs, g) })
}
