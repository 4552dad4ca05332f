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
	// Name is what is known of the peer: its address, its name.
	Name string `json:"name,omitempty"`
}
