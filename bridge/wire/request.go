package wire

// message is a request, a reply or a notice, for example *Get, *GrantReply or *Recall.
type message interface {
	fields() fields
}

// Request is an operation that a client asks for.
type Request interface {
	message
	Op() string   // the operation, as it stands in a packet
	Reply() Reply // an empty reply of the type that answers this request
}

var opNames = namesOf(newRequest)

func namesOf[V any](m map[string]V) map[string]string {
	names := make(map[string]string, len(m))
	for name := range m {
		names[name] = name
	}
	return names
}

// AppendRequest appends the packet of a request to dst. q is the request's number. If q is 0, the service sends no reply. If the message
// exceeds a limit of the protocol, AppendRequest returns dst unchanged and a *FieldError that wraps CodeInvalid.
func AppendRequest(dst []byte, q uint32, r Request) ([]byte, error) {
	op, fields := r.Op(), r.fields()
	out, err := appendTo(dst, func(e *encoder) error {
		n := 1
		if q != 0 {
			n = 2
		}
		if err := e.mp.EncodeMapLen(n + fields.size()); err != nil {
			return err
		}
		if err := e.pair("o", op); err != nil {
			return err
		}
		if err := e.number(q); err != nil {
			return err
		}
		return fields.body(e)
	})
	return out, of(op, err)
}

// DecodeRequest checks and decodes a packet from a client. If DecodeRequest fails but could read the request's number, it still returns the
// number, so that the service can answer the request with the error.
//
// The error is a *PacketError or a *FieldError, which wrap ErrProtocol, or an *UnknownError, which wraps CodeUnsupported. After an
// *UnknownError, the service can still use the connection. AsError turns each of these errors into the error that the service sends in its
// answer.
func DecodeRequest(packet []byte) (q uint32, r Request, err error) {
	h, err := Check(packet)
	if err != nil {
		return h.Q, nil, err
	}
	r, err = h.DecodeRequest()
	return h.Q, r, err
}

// DecodeRequest decodes the packet that h was read from. It returns the same errors as the function DecodeRequest.
func (h Header) DecodeRequest() (Request, error) {
	if h.Op == "" {
		return nil, received("o", "the name of an operation", "none")
	}
	blank, ok := newRequest[h.Op]
	if !ok {
		return nil, &UnknownError{What: "operation", Name: string(clip([]byte(h.Op)))}
	}
	r := blank()
	if err := decodeFrom(h.packet, r.fields().decode); err != nil {
		return nil, of(h.Op, err)
	}
	return r, nil
}
