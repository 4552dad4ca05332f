package admin

import "context"

// Connections shows who is connected to the hub by WebSocket, and closes connections. Its
// methods are safe for concurrent use.
type Connections interface {
	// Connections returns the open connections in the order in which they came, at most
	// limit (1 to MaxPage), after the one named, which may have ended. After an empty
	// one, or one of an earlier run of the hub, it begins with the first. CodeBadRequest
	// if after is not the id of a connection.
	Connections(ctx context.Context, after string, limit int) ([]ConnectionInfo, error)

	// CloseConnection closes a connection as the hub does when it stops: publishes that
	// were accepted are answered, the close code is 1001, so that clients connect again,
	// leases go back to their groups, and their attempts do not count. This has happened
	// when CloseConnection returns. CodeUnknownID if there is no such connection.
	CloseConnection(ctx context.Context, id string) error
}

// ConnectionInfo describes one connection.
type ConnectionInfo struct {
	// ID names the connection, in this run of the hub and in all later ones.
	ID string `json:"id"`
	// Transport is "ws".
	Transport string `json:"transport"`
	Remote    string `json:"remote"` // address
	// Name is who signed in, Client how the client calls itself; both are empty before AUTH.
	Name    string `json:"name,omitempty"`
	Client  string `json:"client,omitempty"`
	SinceTS int64  `json:"since_ts"` // epoch milliseconds
	// Subscriptions counts those to groups and live tails.
	Subscriptions int `json:"subscriptions"`
	// InFlight counts the events that are leased to it.
	InFlight int `json:"in_flight"`
	// Delivered counts the events that it was sent, or that are queued for it.
	Delivered int64 `json:"delivered"`
	// BytesIn and BytesOut are of WebSocket frames; QueuedBytes are not sent yet.
	BytesIn     int64 `json:"bytes_in"`
	BytesOut    int64 `json:"bytes_out"`
	QueuedBytes int   `json:"queued_bytes"`
}
