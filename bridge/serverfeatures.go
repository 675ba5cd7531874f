package bridge

import (
	"slices"

	"github.com/poolbridge/poolbridge/mempool/service"
)

// The features of protocol version 1.
const (
	featureTimelines = "timelines"
	featureChannels  = "channels"
)

// agree says which of a client's features the session has.
func (c *serverConn) agree(offered []string) (both []string) {
	if !slices.Contains(offered, featureTimelines) || service.ProbeTimelines() != nil {
		return both
	}
	c.session.UseTimelines()
	both = append(both, featureTimelines)
	if slices.Contains(offered, featureChannels) {
		both = append(both, featureChannels)
	}
	for _, feature := range both {
		c.features[feature] = true
	}
	return both
}
