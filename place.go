package eventhub

// Place says where an event is.
type Place struct {
	Topic  string `json:"topic"`
	Offset uint64 `json:"offset"`
	// TS, of TailOptions.Places, is when the event was committed, epoch ms; 0
	// where that is not known.
	TS int64 `json:"-"`
}

// Item is one event at its place.
type Item struct {
	Offset uint64
	Record Record
}

// Event decodes the item.
func (i Item) Event() (Event, error) { return i.Record.Event(i.Offset) }

// Peer says who holds a subscription, for people who look. It holds no secret.
type Peer struct {
	// Transport is "ws" or "http"; empty in process.
	Transport string `json:"transport,omitempty"`
	// Name is what the hub knows of the peer: its address, and who signed in.
	Name string `json:"name,omitempty"`
	// Client is how the peer calls itself, see ValidateClient; empty if it does not say.
	Client string `json:"client,omitempty"`
}

// Clone returns a copy.
func (p *Peer) Clone() *Peer {
	c := *p
	return &c
}

// MaxClientBytes bounds the name that a client gives itself.
const MaxClientBytes = 64

// ValidateClient checks the name that a client gives itself: 1 to MaxClientBytes of
// A–Z a–z 0–9 . _ : @ / -. The error has CodeBadRequest.
func ValidateClient(name string) error {
	if name == "" || len(name) > MaxClientBytes {
		return Errorf(CodeBadRequest, "name %s has %d bytes; 1 to %d are allowed", quote(name), len(name), MaxClientBytes)
	}
	for i := range len(name) {
		if c := name[i]; !isIDByte(c) && c != '@' && c != '/' {
			return Errorf(CodeBadRequest, "name %s has %s; A–Z a–z 0–9 . _ : @ / - are allowed", quote(name), quote(runeAt(name, i)))
		}
	}
	return nil
}
