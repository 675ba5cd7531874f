package server

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestAListGivesWayToOtherRequestsIfThereAreAny(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l lists
		took := func(ctx context.Context) time.Duration {
			begun := time.Now() // in a synctest bubble, time passes only while all goroutines wait
			l.wait(ctx)
			return time.Since(begun)
		}
		assert.Zero(t, took(t.Context()))
		l.others.Add(3)
		assert.Equal(t, listRest, took(t.Context()))
		assert.Zero(t, took(t.Context()), "nothing else was asked since")
		l.others.Add(1)
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		assert.Zero(t, took(ended))
	})
}
