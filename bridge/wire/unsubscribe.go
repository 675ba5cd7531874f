package wire

// Unsubscribe ends a subscription. Leases that came with its frames live on. An EmptyReply answers it.
type Unsubscribe struct {
	Subscription uint64 // subscription id
}

var unsubscribeFields = record[Unsubscribe]{
	uintField("sb", func(m *Unsubscribe) *uint64 { return &m.Subscription }),
}

// Op returns "unsubscribe".
func (*Unsubscribe) Op() string { return "unsubscribe" }

func (m *Unsubscribe) size() int { return unsubscribeFields.size(m) }

func (m *Unsubscribe) body(e *encoder) error { return unsubscribeFields.body(e, m) }

func (m *Unsubscribe) decode(d *decoder) error { return unsubscribeFields.decode(d, m) }
