package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/poolbridge/poolbridge/bridge"
)

func TestANameThatCannotBeAskedForIsNotCalledTaken(t *testing.T) {
	said := func(err error) error {
		return checkFree(t.Context(), func(context.Context, string, bridge.LeaseOptions) (*bridge.Lease, error) { return nil, err }, "a\nb")
	}
	for _, err := range []error{bridge.ErrInvalid, bridge.ErrDisconnected, context.Canceled} {
		require.Equal(t, err, said(err))
	}
	for _, err := range []error{bridge.ErrContentFailed, bridge.ErrDenied} {
		require.ErrorIs(t, said(err), bridge.ErrExists)
	}
	require.NoError(t, said(bridge.ErrNotFound))
}
