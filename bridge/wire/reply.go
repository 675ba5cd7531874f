package wire

// Reply is the answer to a request that succeeded.
type Reply interface {
	message
	reply()
}

// AppendReply appends the packet of a reply to dst. q is the number of the request that the reply answers. If the message exceeds a limit
// of the protocol, AppendReply returns dst unchanged and a *FieldError that wraps CodeInvalid.
func AppendReply(dst []byte, q uint32, r Reply) ([]byte, error) {
	if q == 0 {
		return dst, errUnanswerable
	}
	fields := r.fields()
	out, err := appendTo(dst, func(e *encoder) error {
		if err := e.mp.EncodeMapLen(1 + fields.size()); err != nil {
			return err
		}
		if err := e.number(q); err != nil {
			return err
		}
		return fields.body(e)
	})
	return out, of("reply", err)
}

// errUnanswerable is the error for a reply to a request without a number.
var errUnanswerable = &FieldError{Message: "reply", Key: "q", Expected: "a request number", Found: "0", Code: CodeInvalid}

// AppendError appends the packet that answers request q with a failure. AppendError cuts an error text that is too long, and replaces
// invalid UTF-8 in the text.
func AppendError(dst []byte, q uint32, failure *Error) ([]byte, error) {
	if q == 0 {
		return dst, errUnanswerable
	}
	out, err := appendTo(dst, func(e *encoder) error {
		if err := e.mp.EncodeMapLen(2); err != nil {
			return err
		}
		if err := e.number(q); err != nil {
			return err
		}
		if err := e.key("e"); err != nil {
			return err
		}
		return errorFields.encode(e, failure)
	})
	return out, of("error", err)
}

// DecodeHeader checks a packet from the service and says whether it is a reply or a notice. For a reply, the field Q is the number of the
// request that the reply answers. For a notice, Q is 0 and the field Notice is the name of the notice.
func DecodeHeader(packet []byte) (Header, error) {
	h, err := Check(packet)
	switch {
	case err != nil:
		return h, err
	case h.Q != 0:
		h.Notice = ""
	case h.Notice == "":
		return h, received("q", "the number of a request, or a notice", "neither")
	}
	return h, nil
}

// DecodeReply checks a reply packet and decodes the reply into the argument `into`, which must have the type of the request's reply. If the
// request failed, DecodeReply returns an *Error. If the packet is malformed, DecodeReply returns an error that wraps ErrProtocol.
func DecodeReply(packet []byte, into Reply) (q uint32, err error) {
	h, err := DecodeHeader(packet)
	if err != nil {
		return h.Q, err
	}
	return h.Q, h.DecodeReply(into)
}

// DecodeReply decodes the packet that h was read from. It returns the same errors as the function DecodeReply.
func (h Header) DecodeReply(into Reply) error {
	if h.Q == 0 {
		return received("q", "the number of a request", "none")
	}
	if !h.Failed {
		return of("reply", decodeFrom(h.packet, into.fields().decode))
	}
	failure := new(Error)
	err := decodeFrom(h.packet[h.fault:], func(d *decoder) error { return errorFields.decode(d, failure) })
	if err != nil {
		return of("reply", under("e", err))
	}
	return failure
}
