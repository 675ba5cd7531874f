package bridge

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge/server"
)

// Each client first calls Clock with a context that ends early. These contexts end at different moments, so that every step that makes the
// timeline is interrupted for some client.
func TestATimelineWhoseMakingWasCutShortCanStillBeMade(t *testing.T) {
	_, path := serve(t, server.Config{})
	for n := range 60 {
		c := dial(t, path)
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(20+5*n)*time.Microsecond)
		_, _ = c.Clock(ctx) // the context may end before the timeline is made
		cancel()
		clock, err := c.Clock(t.Context())
		require.NoError(t, err)
		require.NotNil(t, clock)
		require.NoError(t, c.Close())
	}
}
