package wire

// Notice is a message that the service sends to a client, but not as the answer to a request.
type Notice interface {
	message
	Notice() string // the notice's name, as it stands in a packet
}

var noticeNames = namesOf(newNotice)

// AppendNotice appends the packet of a notice to dst. If the message exceeds a limit of the protocol, AppendNotice returns dst unchanged
// and a *FieldError that wraps CodeInvalid.
func AppendNotice(dst []byte, n Notice) ([]byte, error) {
	name, fields := n.Notice(), n.fields()
	out, err := appendTo(dst, func(e *encoder) error {
		if err := e.mp.EncodeMapLen(1 + fields.size()); err != nil {
			return err
		}
		if err := e.pair("n", name); err != nil {
			return err
		}
		return fields.body(e)
	})
	return out, of(name, err)
}

// DecodeNotice checks and decodes a notice. If this package does not know the notice, DecodeNotice returns an *UnknownError, and the client
// ignores the notice.
func DecodeNotice(packet []byte) (Notice, error) {
	h, err := DecodeHeader(packet)
	if err != nil {
		return nil, err
	}
	return h.DecodeNotice()
}

// DecodeNotice decodes the packet that h was read from. It returns the same errors as the function DecodeNotice.
func (h Header) DecodeNotice() (Notice, error) {
	if h.Notice == "" || h.Q != 0 {
		return nil, received("n", "the name of a notice", "none")
	}
	blank, ok := newNotice[h.Notice]
	if !ok {
		return nil, &UnknownError{What: "notice", Name: string(clip([]byte(h.Notice)))}
	}
	n := blank()
	if err := decodeFrom(h.packet, n.fields().decode); err != nil {
		return nil, of(h.Notice, err)
	}
	return n, nil
}
