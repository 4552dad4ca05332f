package rest

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"eventhub"
)

// # Idempotency-Key
//
// A publish with the header Idempotency-Key (draft-ietf-httpapi-idempotency-key-header-07) is carried out once,
// however often it is sent. Its events without an id get ids that the principal, the key and their
// places make, so what the hub knows of ids it knows of keys: for as long, over restarts, and in
// backups, with no table of keys. While a request with a key is carried out another one with the same
// key is refused, so a look before the publish is enough to see that the key was used for another
// publish.

const (
	idempotencyKey = "Idempotency-Key"
	// maxIdempotencyKey bounds a key, in bytes.
	maxIdempotencyKey = 256
)

// errOtherPublish is the cause of a refusal of a key that was used for another publish.
var errOtherPublish = errors.New("rest: the key was used for another publish")

// onceKey is a hash of who publishes and the key.
type onceKey [sha256.Size]byte

// readOnceKey returns the key of a request; ok is false where it has none.
func readOnceKey(h http.Header, principal string) (key onceKey, text string, ok bool, err error) {
	values := h.Values(idempotencyKey)
	if len(values) == 0 {
		return key, "", false, nil
	}
	if len(values) > 1 {
		return key, "", false, eventhub.Errorf(eventhub.CodeBadRequest, "%s is given %d times", idempotencyKey, len(values))
	}
	if text, err = unquoteKey(values[0]); err != nil {
		return key, "", false, err
	}
	sum := sha256.New()
	fmt.Fprintf(sum, "%d:%s%s", len(principal), principal, text)
	sum.Sum(key[:0])
	return key, text, true, nil
}

// unquoteKey reads a String of RFC 9651. Many clients send the key without quotes; that is taken too.
func unquoteKey(value string) (string, error) {
	text, quoted := strings.CutPrefix(value, `"`)
	if quoted {
		rest := text
		var b strings.Builder
		for {
			i := strings.IndexAny(rest, `"\`)
			if i < 0 {
				return "", badKey(value, "has no closing quote")
			}
			b.WriteString(rest[:i])
			if rest[i] == '"' {
				rest = rest[i+1:]
				break
			}
			if i+1 == len(rest) || rest[i+1] != '"' && rest[i+1] != '\\' {
				return "", badKey(value, `has a \ that escapes neither " nor \`)
			}
			b.WriteByte(rest[i+1])
			rest = rest[i+2:]
		}
		if rest != "" {
			return "", badKey(value, "goes on after the closing quote")
		}
		text = b.String()
	}
	if text == "" || len(text) > maxIdempotencyKey {
		return "", badKey(value, fmt.Sprintf("has %d bytes; 1 to %d are allowed", len(text), maxIdempotencyKey))
	}
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' {
			return "", badKey(value, fmt.Sprintf("has the byte %#02x; visible ASCII and spaces are allowed", c))
		}
	}
	return text, nil
}

func badKey(value, what string) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, "%s %.80q %s", idempotencyKey, value, what)
}

// id returns the id of the event without one at a place: a UUID of version 8 (RFC 9562).
func (k onceKey) id(place int) string {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(k[:], uint64(place)))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16])
}

// publishOnce is publish where the request may have a key.
func (a *API) publishOnce(r *http.Request, access Access, pub eventhub.Publication) ([]eventhub.Receipt, error) {
	key, text, given, err := readOnceKey(r.Header, access.Name)
	if err != nil {
		return nil, err
	}
	if !given {
		return a.publish(r.Context(), access.Publisher, pub)
	}
	if access.Recaller == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub does not take %s", idempotencyKey)
	}
	if _, underWay := a.once.LoadOrStore(key, nil); underWay {
		return nil, &eventhub.Error{
			Code: eventhub.CodeConflict, RetryAfter: time.Second,
			Message: fmt.Sprintf("a request with %s %.80q is under way; nothing was done for this one", idempotencyKey, text),
		}
	}
	defer a.once.Delete(key)
	var made []int // places of events that get an id
	for i := range pub.Events {
		if e := &pub.Events[i]; e.ID == "" {
			e.ID = key.id(len(made))
			made = append(made, i)
		}
	}
	if err := recall(r.Context(), access.Recaller, key, pub.Events, made); err != nil {
		if errors.Is(err, errOtherPublish) {
			err = eventhub.Wrap(eventhub.CodeConflict, err, "%s %.80q was used for another publish, or some events of its publish were removed since; nothing was done for this one", idempotencyKey, text)
		}
		return nil, err
	}
	// A client that goes away does not end the publish before its key is free again.
	ctx := r.Context()
	if len(pub.WaitFor) == 0 {
		ctx = context.WithoutCancel(ctx)
	}
	return a.publish(ctx, access.Publisher, pub)
}

// recall looks whether the key was used before. If one of the events that have their ids from it is there,
// all have to be, and no more than these in their topics, and each be what it was; else the error is
// errOtherPublish.
func recall(ctx context.Context, of eventhub.Recaller, key onceKey, events []eventhub.Event, made []int) error {
	var known int
	var topics []string
	for n, i := range made {
		e := &events[i]
		before, err := of.Recall(ctx, e.Topic, e.ID)
		switch {
		case err == nil && isSame(before, e):
			known++
		case err == nil:
			return errOtherPublish
		case eventhub.ErrorCode(err) != eventhub.CodeUnknownID:
			return eventhub.AtIndex(err, "", i)
		}
		if known != 0 && known != n+1 {
			return errOtherPublish
		}
		if !slices.Contains(topics, e.Topic) {
			topics = append(topics, e.Topic)
		}
	}
	if known == 0 {
		return nil
	}
	for _, topic := range topics {
		if _, err := of.Recall(ctx, topic, key.id(len(made))); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			return cmp.Or(err, errOtherPublish)
		}
	}
	return nil
}

// isSame reports whether an event is what was published before. Headers are not compared, which
// proxies add, nor times.
func isSame(before eventhub.Record, e *eventhub.Event) bool {
	b, err := before.Event(0)
	return err == nil && b.Key == e.Key && b.SID == e.SID && slices.Equal(b.Tags, e.Tags) && slices.Equal(b.CausedBy, e.CausedBy) && isSameJSON(b.Payload, e.Payload)
}

func isSameJSON(a, b []byte) bool {
	if bytes.Equal(a, b) {
		return true
	}
	var x, y bytes.Buffer
	return json.Compact(&x, a) == nil && json.Compact(&y, b) == nil && bytes.Equal(x.Bytes(), y.Bytes())
}
