package server

import (
	"slices"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// agree returns the features that the session has: those that the client offers and that work on this machine.
func (c *connection) agree(offered []string) (both []string) {
	if !slices.Contains(offered, wire.FeatureTimelines) || service.ProbeTimelines() != nil {
		return both
	}
	both = append(both, wire.FeatureTimelines)
	if slices.Contains(offered, wire.FeatureChannels) {
		both = append(both, wire.FeatureChannels)
	}
	if slices.Contains(offered, wire.FeatureRanges) {
		both = append(both, wire.FeatureRanges)
	}
	for _, feature := range both {
		c.features[feature] = true
	}
	return both
}
