package server

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/poolbridge/poolbridge/internal/ration"
)

func TestOneUserCannotFillTheLogWithRefusedConnections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c := complaints{log: slog.New(slog.NewTextHandler(&log, nil))}
		for range 1000 {
			c.warn(1, "refused", "uid", 1)
		}
		c.warn(2, "refused", "uid", 2)
		assert.Equal(t, ration.Burst+1, strings.Count(log.String(), "msg=refused"))
		time.Sleep(ration.Pause)
		c.warn(1, "refused", "uid", 1)
		assert.Contains(t, log.String(), fmt.Sprintf("uid=1 left_out=%d", 1000-ration.Burst))
	})
}
