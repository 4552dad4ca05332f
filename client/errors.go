package client

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"

	gws "github.com/gobwas/ws"

	"eventhub"
)

var (
	// ErrUnreachable is in the chain of the error of Dial, or of a call of an Admin,
	// when no hub could be talked to, as opposed to one that denied the client.
	ErrUnreachable = errors.New("client: no hub can be reached")
	// ErrClosed is what calls return, and receivers get, after Close or
	// Drain. Of a request that was under way it says that its outcome is unknown.
	ErrClosed = errors.New("client: closed")
	// ErrProtocol is in the chain of the error when a hub speaks another version
	// of the protocol; the message has both versions and that of the hub. It counts
	// as a denial: the hub is not tried again.
	ErrProtocol = errors.New("client: another version of the protocol")
)

// isDenial reports whether a hub has understood who asks and does not want it:
// trying again would not help.
func isDenial(err error) bool {
	return eventhub.ErrorCode(err).Denied() || errors.Is(err, ErrProtocol)
}

// maxRefusalBytes bounds what is read of the answer to a refused upgrade.
const maxRefusalBytes = 16 << 10

// readRefusal returns the error that a hub gives in its answer to a refused upgrade, as it
// was sent; nil where the answer has none.
func readRefusal(answer io.Reader) *eventhub.Error {
	resp, err := http.ReadResponse(bufio.NewReader(io.LimitReader(answer, maxRefusalBytes)), nil)
	if err != nil {
		return nil
	}
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	body, _ := io.ReadAll(resp.Body) // what is cut off is no JSON
	return (&response{kind: kind, header: resp.Header, body: body}).problem()
}

// handshakeError translates a refused upgrade: a proxy before a hub may ask
// for rights too. refusal is what the hub has said, if it was one.
func handshakeError(err error, refusal *eventhub.Error) error {
	if refusal != nil {
		return refusal
	}
	var status gws.StatusError
	if errors.As(err, &status) && (status == 401 || status == 403) {
		return eventhub.Wrap(eventhub.CodeForbidden, err, "The WebSocket handshake was refused.")
	}
	if errors.Is(err, gws.ErrHandshakeBadProtocol) { // HTTP/1.0: so Go's servers answer to who does not speak TLS
		return fmt.Errorf("%w; it may speak TLS: its URL then begins with wss://", err)
	}
	if _, plain := errors.AsType[tls.RecordHeaderError](err); plain {
		return fmt.Errorf("%w; it speaks no TLS: its URL begins with ws://", err)
	}
	return err
}

// closedError is the close frame of a hub.
type closedError struct {
	code   gws.StatusCode
	reason string
}

func (e *closedError) Error() string {
	return fmt.Sprintf("the hub closed the connection: %d %q", e.code, e.reason)
}
