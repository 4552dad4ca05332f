package eventhub

import (
	"strconv"
	"strings"
)

// Lease names one delivery. The text form is opaque to clients and holds
// A–Z a–z 0–9 and - only.
type Lease struct {
	// Runtime is drawn again whenever a hub loads the group, so that a lease of
	// an earlier run never names one of this run.
	Runtime uint64
	Offset  uint64
	Serial  uint64
}

// IsZero reports whether l names nothing.
func (l Lease) IsZero() bool { return l == Lease{} }

// Append appends the text form.
func (l Lease) Append(dst []byte) []byte {
	dst = strconv.AppendUint(dst, l.Runtime, 36)
	dst = append(dst, '-')
	dst = strconv.AppendUint(dst, l.Offset, 36)
	dst = append(dst, '-')
	return strconv.AppendUint(dst, l.Serial, 36)
}

func (l Lease) String() string { return string(l.Append(nil)) }

// ParseLease reads the text form. What is not one has CodeBadRequest.
func ParseLease(s string) (Lease, error) {
	bad := func() (Lease, error) {
		return Lease{}, Errorf(CodeBadRequest, "lease %s is not a lease token", quote(s))
	}
	runtime, rest, ok := strings.Cut(s, "-")
	if !ok {
		return bad()
	}
	offset, serial, ok := strings.Cut(rest, "-")
	if !ok {
		return bad()
	}
	var l Lease
	var err error
	for _, part := range []struct {
		text string
		into *uint64
	}{{runtime, &l.Runtime}, {offset, &l.Offset}, {serial, &l.Serial}} {
		if *part.into, err = strconv.ParseUint(part.text, 36, 64); err != nil {
			return bad()
		}
	}
	return l, nil
}
