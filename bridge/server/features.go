package server

import (
	"slices"

	"github.com/poolbridge/poolbridge/bridge/wire"
	"github.com/poolbridge/poolbridge/mempool/service"
)

// agree returns the features that the session has: those that the client offers and that work on this machine.
func (c *connection) agree(offered []string) (both []string) {
	offers := func(feature string) bool { return slices.Contains(offered, feature) }
	if offers(wire.FeatureTimelines) && service.ProbeTimelines() == nil {
		both = append(both, wire.FeatureTimelines)
		if offers(wire.FeatureChannels) {
			both = append(both, wire.FeatureChannels)
		}
		if offers(wire.FeatureRanges) {
			both = append(both, wire.FeatureRanges)
		}
	}
	if offers(wire.FeatureWatch) {
		both = append(both, wire.FeatureWatch)
		c.session.Watch()
	}
	for _, feature := range both {
		c.features[feature] = true
	}
	return both
}
