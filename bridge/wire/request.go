package wire

// message is a request, a reply or a notice: *Get, *LeaseReply, *Recall and so on.
type message interface {
	fields() fields
}

// Request is an operation that a client asks for.
type Request interface {
	message
	Op() string // the operation as it stands on the wire
}

// newRequest makes an empty request for each operation of the protocol.
var newRequest = map[string]func() Request{
	"hello":     func() Request { return new(Hello) },
	"create":    func() Request { return new(Create) },
	"open":      func() Request { return new(Open) },
	"destroy":   func() Request { return new(Destroy) },
	"trim":      func() Request { return new(Trim) },
	"alloc":     func() Request { return new(Alloc) },
	"publish":   func() Request { return new(Publish) },
	"unpublish": func() Request { return new(Unpublish) },
	"get":       func() Request { return new(Get) },
	"lease":     func() Request { return new(Borrow) },
	"release":   func() Request { return new(Release) },
	"cancel":    func() Request { return new(Cancel) },
	"dropped":   func() Request { return new(Dropped) },
	"stats":     func() Request { return new(StatsRequest) },
	"list":      func() Request { return new(List) },

	"timeline": func() Request { return new(Timeline) },
	"seal":     func() Request { return new(Seal) },
	"channel":  func() Request { return new(MakeChannel) },
	"find":     func() Request { return new(Find) },
	"close":    func() Request { return new(CloseChannel) },
	"join":     func() Request { return new(Join) },
	"enter":    func() Request { return new(Enter) },
	"leave":    func() Request { return new(Leave) },
	"map":      func() Request { return new(Map) },
	"doubt":    func() Request { return new(Doubt) },
}

var opNames = namesOf(newRequest)

func namesOf[V any](m map[string]V) map[string]string {
	names := make(map[string]string, len(m))
	for name := range m {
		names[name] = name
	}
	return names
}

// AppendRequest appends a request's packet to dst. q is its number; 0 asks for no reply. A message that breaks a limit
// of the protocol yields a *FieldError that wraps CodeInvalid, and dst as it was.
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

// DecodeRequest checks and decodes a packet from a client. The number of the request is returned with an error too, as
// far as it could be read, so that the error can be answered.
//
// The error is a *PacketError or a *FieldError, which wrap ErrProtocol, or an *UnknownError, which wraps
// CodeUnsupported and leaves the connection usable. AsError turns each into its answer.
func DecodeRequest(packet []byte) (q uint32, r Request, err error) {
	h, err := Check(packet)
	if err != nil {
		return h.Q, nil, err
	}
	r, err = h.DecodeRequest()
	return h.Q, r, err
}

// DecodeRequest decodes the packet that h was read from. Its errors are those of the function DecodeRequest.
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
