package service

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/mempool"
)

func TestHintsOfNamesDoNotDependOnNamesThatAreHidden(t *testing.T) {
	for _, kind := range []string{"name", "pool", "channel"} {
		t.Run(kind, func(t *testing.T) {
			svc, self := newService(t), mempool.Self()
			owner := open(t, svc)
			stranger := openClient(t, svc, mempool.Peer{UID: self.UID + 1})
			create := func(name string, users ...uint32) *Pool {
				return createPool(t, owner, mempool.PoolSpec{Name: name, Kind: fake, MaxBytes: 1 << 20, Access: mempool.Access{UIDs: users}})
			}
			hidden, shared := create("hidden", self.UID), create("shared", self.UID, self.UID+1)
			set := func(name string, seen bool) {
				switch kind {
				case "name":
					p := hidden
					if seen {
						p = shared
					}
					publish(t, allocate(t, owner, p, 1), mempool.Publication{Name: name})
				case "pool":
					users := []uint32{self.UID, self.UID + 1}
					if !seen {
						users = users[:1]
					}
					create(name, users...)
				case "channel":
					p := hidden
					if seen {
						p = shared
					}
					_, err := owner.MakeChannel(mempool.ChannelSpec{Name: name, Pool: p.rec.Info.ID, Capacity: 1})
					require.NoError(t, err)
				}
			}
			ask := func() string {
				var err error
				switch kind {
				case "name":
					_, err = stranger.getLease(context.Background(), "weighs", false, 0)
				case "pool":
					_, err = stranger.OpenPool(context.Background(), "weighs", 0)
				case "channel":
					_, err = stranger.FindChannel(context.Background(), "weighs", 0)
				}
				require.ErrorIs(t, err, mempool.ErrNotFound)
				_, hint, _ := strings.Cut(err.Error(), "did you mean ")
				return hint
			}
			set("weighty", false)
			assert.Empty(t, ask(), "nothing that the user sees is similar")
			set("weights", true)
			require.Equal(t, `"weights"?`, ask())
			for i := range 700 {
				if i%200 == 199 {
					hidden = create(fmt.Sprint("hidden", i), self.UID)
				}
				set(fmt.Sprintf("wa%03d", i), false)
			}
			for range 10 {
				assert.Equal(t, `"weights"?`, ask())
			}
		})
	}
}
