package bridge

import (
	"context"
	"fmt"

	"github.com/poolbridge/poolbridge/bridge/internal/digest"
)

// DigestPrefix and the name of an array are the key of its digest in the metadata of a buffer. The value is the SHA-256 digest of the array's
// bytes, in lower-case hex. In Python, put(…, digests=True) makes digests.
const DigestPrefix = digest.Prefix

// Verify waits until the content is complete, reads all arrays, and compares their digests with those in the metadata, see [DigestPrefix].
//
// Errors: [ErrContentFailed] if an array has another digest, or the content will never be complete; [ErrInvalid] if an array has no digest;
// [ErrReleased]; the context's error.
func (l *Lease) Verify(ctx context.Context) error {
	t := l.Tensor()
	if t.Arrays == nil {
		t.Arrays = []NamedTensor{{Tensor: t}}
	}
	for _, a := range t.Arrays {
		if _, ok := t.Metadata[DigestPrefix+a.Name]; !ok || a.Tensor.Strides != nil {
			return fmt.Errorf("%w: array %q has no digest: poolsvc load --digests makes digests", ErrInvalid, a.Name)
		}
	}
	found, err := digest.Of(ctx, t.Arrays, func(i int, piece []byte, at uint64) error {
		return l.CopyTo(ctx, piece, t.Arrays[i].Tensor.ByteOffset+at)
	})
	if err != nil {
		return err
	}
	for i, a := range t.Arrays {
		if said := t.Metadata[DigestPrefix+a.Name]; said != found[i] {
			return fmt.Errorf("%w: array %q has the SHA-256 digest %s, and its metadata says %.100q: publish it again", ErrContentFailed, a.Name, found[i], said)
		}
	}
	return l.Check(ctx)
}
