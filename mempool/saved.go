package mempool

import (
	"encoding/json"

	"github.com/poolbridge/poolbridge/cuda"
	"github.com/poolbridge/poolbridge/internal/typed"
)

// Saved says where a published buffer is, in a form that a file can hold. A Saved is for scripts, and for programs that are not clients of
// a service. If the buffer's memory is of kind [Legacy], a program needs only the Saved to open the buffer. Processes share memory of the
// other kinds by file descriptors, which a file cannot hold. For these kinds, a Saved contains the socket of the service and the name of
// the buffer, and the program must ask this service for the buffer.
type Saved struct {
	Version int    `json:"poolbridge"`
	Kind    Kind   `json:"kind"`
	Device  string `json:"device,omitempty"` // UUID
	// Bytes is the size of the buffer. DType, Shape, Strides and ByteOffset describe the content of the buffer.
	Bytes   uint64   `json:"bytes"`
	DType   DType    `json:"dtype"`
	Shape   []uint64 `json:"shape"`
	Strides []int64  `json:"strides,omitempty"`
	// ByteOffset is the offset of the first element from the beginning of the buffer.
	ByteOffset uint64 `json:"byte_offset,omitempty"`
	// Handle is set for kind legacy only. It has the 64 bytes of the driver's handle, and the offset of the buffer in the block that the
	// handle opens. In JSON, Handle is in base64.
	Handle []byte `json:"handle,omitempty"`
	// Socket is the socket of the service, and Name is the name of the buffer. Epoch is the service's epoch at the time when the Saved was
	// made.
	Socket string `json:"socket,omitempty"`
	Name   string `json:"name,omitempty"`
	Epoch  string `json:"epoch,omitempty"`
}

// Tensor returns the description of the buffer's content.
func (s Saved) Tensor() Tensor {
	return Tensor{DType: s.DType, Shape: s.Shape, Strides: s.Strides, ByteOffset: s.ByteOffset}
}

// Validate returns an error if s cannot describe a buffer.
//
// Errors: [ErrInvalid].
func (s Saved) Validate() error {
	switch _, err := s.Kind.backend(); {
	case s.Version != SavedVersion:
		return typed.Errorf(ErrInvalid, "the saved buffer has version %d, this program reads version %d", s.Version, SavedVersion)
	case err != nil:
		return err
	}
	need, err := s.Tensor().Extent()
	if err != nil {
		return err
	}
	if need > s.Bytes {
		return typed.Errorf(ErrInvalid, "a %s of shape %v needs %d bytes, and the buffer has %d", s.DType, s.Shape, need, s.Bytes)
	}
	if s.Kind == Legacy {
		_, err = ParseLegacyHandle(s.Handle)
	}
	return err
}

// ParseSaved reads a Saved from the content of a file. The file must contain a [Saved] in JSON, the 64 bytes of a driver's handle, or the
// 72 bytes of a [LegacyHandle].
//
// Errors: [ErrInvalid] for any other file.
func ParseSaved(file []byte) (s Saved, err error) {
	if len(file) == HandleBytes || len(file) == LegacyHandleBytes {
		if !json.Valid(file) {
			return Saved{Version: SavedVersion, Kind: Legacy, Handle: file}, nil
		}
	}
	if err := json.Unmarshal(file, &s); err != nil {
		return s, typed.Errorf(ErrInvalid, "a file of %d bytes is no saved buffer: expected JSON, or a driver's handle of %d bytes, or %d with its offset (%v)",
			len(file), HandleBytes, LegacyHandleBytes, err)
	}
	return s, s.Validate()
}

// Open maps a buffer of kind [Legacy].
//
// Errors: [ErrInvalid] for another kind; the errors of [LegacyHandle.Open].
func (s Saved) Open(ctx *cuda.Context) (*OpenedHandle, error) {
	if s.Kind != Legacy {
		return nil, typed.Errorf(ErrInvalid, "memory of kind %q has no handle that a file can hold: get %q from the service on %s", s.Kind, s.Name, s.Socket)
	}
	h, err := ParseLegacyHandle(s.Handle)
	if err != nil {
		return nil, err
	}
	return h.Open(ctx, s.Bytes)
}
