package wire

// note reads one value of the envelope and stores it in h. The value belongs to a one-letter key of the packet's outermost map. Check has
// already checked the form of the value.
func (h *Header) note(key byte, at int, value []byte) error {
	kind := kindOf(value[0])
	switch key {
	case 'o':
		if kind != kindString {
			return received("o", "string", kind.String())
		}
		h.Op = name(opNames, value)
		if h.Op == "" {
			return received("o", "the name of an operation", "an empty string")
		}
	case 'n':
		// n is the name of a notice only if it is a string: a reply to trim has an integer with the key n.
		if kind == kindString {
			h.Notice = name(noticeNames, value)
		}
	case 'q':
		q, ok := unsigned(value)
		if !ok || q > MaxQuery {
			return received("q", "unsigned integer of at most 32 bits", kind.String())
		}
		h.Q = uint32(q)
	case 'e':
		h.Failed, h.fault = true, at
	}
	return nil
}

// name returns the string that is encoded in value. If the map `known` has the string as a key, the function allocates no memory.
func name(known map[string]string, value []byte) string {
	text := value[1+codes[value[0]].width:]
	if s, ok := known[string(text)]; ok {
		return s
	}
	return string(text)
}

// unsigned returns the integer that is encoded in value. The integer may have any of the formats of integers. The second result is false if
// value is not an integer or the integer is negative.
func unsigned(value []byte) (uint64, bool) {
	kind, payload := kindOf(value[0]), value[1:]
	switch {
	case kind != kindUnsigned && kind != kindSigned:
		return 0, false
	case len(payload) == 0:
		return uint64(value[0]), kind == kindUnsigned
	case kind == kindSigned && payload[0] >= 0x80:
		return 0, false
	}
	var n uint64
	for _, b := range payload {
		n = n<<8 | uint64(b)
	}
	return n, true
}

func received(key, expected, found string) *FieldError {
	return &FieldError{Key: key, Expected: expected, Found: found, Code: CodeProtocol}
}
