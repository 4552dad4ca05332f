package eventhub

import (
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"
)

// Limits on one event, in bytes unless said otherwise.
const (
	MaxIDBytes      = 64
	MaxKeyBytes     = 1 << 10
	MaxSIDBytes     = 128
	MaxPayloadBytes = 1 << 20
	MaxHeaders      = 64 // names
	MaxHeaderBytes  = 16 << 10
	MaxTags         = 32 // tags
	MaxTagBytes     = 128
	MaxCausedBy     = 64 // ids

	// MaxFutureTS is how far a publisher's own time may lie ahead of the hub's.
	MaxFutureTS = 5 * time.Minute

	// MaxOffset is the largest offset: every JSON reader can hold it exactly.
	MaxOffset = 1<<53 - 1
)

// MaxDelay is how far ahead an event may be delayed.
const MaxDelay = 365 * 24 * time.Hour

// DefaultPartitions is the number of partitions of a topic that does not say.
const DefaultPartitions = 16

// Event is one event as people and programs see it. Publishers fill Topic and
// Payload and whatever else they want to say; ID and TS are made by the hub
// when empty. Offset, CommittedTS and Partition are always the hub's: Publish
// ignores what it finds there.
type Event struct {
	// Offset is the position in the topic, from 1; 0 before commit.
	Offset uint64 `json:"offset,omitempty"`
	// ID is a UUIDv7 unless the publisher gave 1–64 of A–Z a–z 0–9 . _ : -.
	ID string `json:"id,omitempty"`
	// TS is in epoch milliseconds: the publisher's own time if it gave one,
	// else the commit time.
	TS int64 `json:"ts,omitempty"`
	// CommittedTS is the hub's clock at commit, present only where the
	// publisher gave its own TS. See [Event.CommitTime].
	CommittedTS int64  `json:"committed_ts,omitempty"`
	Topic       string `json:"topic"`
	// Partition is derived from Key and present only with it.
	Partition *int              `json:"partition,omitempty"`
	Key       string            `json:"key,omitempty"`
	SID       string            `json:"sid,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Tags      []string          `json:"tags,omitempty"`
	CausedBy  []string          `json:"caused_by,omitempty"`
	// Payload is any JSON value; its tokens are kept as they were sent.
	Payload json.RawMessage `json:"payload"`

	// Of a publish only, and at most one of them: when the event is to enter the
	// log, as a time from the hub's clock on (up to MaxDelay), or as a time of that
	// clock, to the millisecond. With a time in the past the event is published at once.
	Delay     time.Duration `json:"-"`
	DeliverAt time.Time     `json:"-"`

	// Of a publish only: what has to hold for the event to be published.
	Expect Expect `json:"-"`
}

// CommitTime is the hub's clock at commit: the time that every question about time
// is about.
func (e *Event) CommitTime() time.Time {
	if e.CommittedTS != 0 {
		return time.UnixMilli(e.CommittedTS)
	}
	return e.Time()
}

// Time is TS as a time: the publisher's own if it gave one, else the commit time.
func (e *Event) Time() time.Time { return time.UnixMilli(e.TS) }

// Millis returns t in epoch milliseconds, as the wire and TS have times; 0 for the zero
// time.
func Millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// Validate checks all that a publisher decides, except the payload's syntax,
// which is checked where it is encoded. now is the hub's clock. The first
// violation is returned as an Error that names the field and its value.
func (e *Event) Validate(now time.Time) error {
	if err := ValidateTopic(e.Topic); err != nil {
		return err
	}
	return e.ValidateFields(now)
}

// ValidateFields is Validate for an event whose topic was checked already.
func (e *Event) ValidateFields(now time.Time) error {
	if e.ID != "" {
		if err := ValidateID(e.ID); err != nil {
			return err
		}
	}
	if err := e.checkTS(now); err != nil {
		return err
	}
	if err := e.checkDelay(now); err != nil {
		return err
	}
	if err := checkText("key", e.Key, MaxKeyBytes); err != nil {
		return err
	}
	if err := e.checkExpect(); err != nil {
		return err
	}
	if err := checkText("sid", e.SID, MaxSIDBytes); err != nil {
		return err
	}
	if err := checkHeaders(e.Headers); err != nil {
		return err
	}
	if err := checkTags(e.Tags); err != nil {
		return err
	}
	if err := checkCausedBy(e.CausedBy); err != nil {
		return err
	}
	return e.checkPayload()
}

func (e *Event) checkTS(now time.Time) error {
	if e.TS < 0 {
		return Errorf(CodeBadEvent, "ts is %d; epoch milliseconds are not negative", e.TS)
	}
	if limit := now.Add(MaxFutureTS).UnixMilli(); e.TS > limit {
		return Errorf(CodeBadEvent, "ts is %d, more than %d minutes ahead of the hub's clock (%d)",
			e.TS, int(MaxFutureTS.Minutes()), now.UnixMilli())
	}
	return nil
}

func (e *Event) checkDelay(now time.Time) error {
	at := Millis(e.DeliverAt)
	switch latest := now.Add(MaxDelay).UnixMilli(); {
	case e.Delay == 0 && at == 0:
		return nil
	case e.Delay != 0 && at != 0:
		return Errorf(CodeBadEvent, "both delay_ms and deliver_at are given; one of them is expected")
	case e.Delay < 0 || e.Delay > MaxDelay:
		return Errorf(CodeBadEvent, "delay_ms is %d; 0 to %d (a year) are allowed", e.Delay.Milliseconds(), MaxDelay.Milliseconds())
	case at < 0:
		return Errorf(CodeBadEvent, "deliver_at is %d; epoch milliseconds are not negative", at)
	case at > latest:
		return Errorf(CodeBadEvent, "deliver_at is %d, more than a year ahead of the hub's clock (%d)", at, now.UnixMilli())
	}
	return nil
}

// Due returns when the event is to enter the log, in epoch milliseconds, rounded
// up: at once if that is not after now.
func (e *Event) Due(now time.Time) int64 {
	if e.Delay > 0 {
		return now.Add(e.Delay + time.Millisecond - 1).UnixMilli()
	}
	return Millis(e.DeliverAt)
}

func (e *Event) checkPayload() error {
	if len(e.Payload) == 0 {
		return Errorf(CodeBadRequest, "payload is missing; null is a payload")
	}
	if len(e.Payload) <= MaxPayloadBytes {
		return nil
	}
	if n := sizeOfTokens(e.Payload); n > MaxPayloadBytes {
		return Errorf(CodeTooLarge, "payload has %d bytes; at most %d are allowed", n, MaxPayloadBytes)
	}
	return nil
}

// sizeOfTokens returns the size of a JSON value without the space between its tokens,
// which is not kept. Of what is no JSON it returns some number.
func sizeOfTokens(value []byte) int {
	n, quoted := 0, false
	for i := 0; i < len(value); i++ {
		switch c := value[i]; {
		case quoted && c == '\\':
			i++
			n++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == ' ' || c == '\t' || c == '\r' || c == '\n'):
			continue
		}
		n++
	}
	return n
}

// ValidateID checks an event id: 1–64 of A–Z a–z 0–9 . _ : -. The error has
// CodeBadEvent.
func ValidateID(id string) error { return checkID("id", id) }

func checkID(field, id string) error {
	if id == "" {
		return Errorf(CodeBadEvent, "%s is empty", field)
	}
	if len(id) > MaxIDBytes {
		return Errorf(CodeBadEvent, "%s %s has %d bytes; at most %d are allowed", field, quote(id), len(id), MaxIDBytes)
	}
	for i := 0; i < len(id); i++ {
		if !isIDByte(id[i]) {
			return Errorf(CodeBadEvent, "%s %s has %s; A–Z a–z 0–9 . _ : - are allowed", field, quote(id), quote(runeAt(id, i)))
		}
	}
	return nil
}

func checkText(field, value string, limit int) error {
	if len(value) > limit {
		return Errorf(CodeBadEvent, "%s %s has %d bytes; at most %d are allowed", field, quote(value), len(value), limit)
	}
	if !utf8.ValidString(value) {
		return Errorf(CodeBadEvent, "%s %s is not valid UTF-8", field, quote(value))
	}
	return nil
}

func checkHeaders(headers map[string]string) error {
	if len(headers) > MaxHeaders {
		return Errorf(CodeBadEvent, "headers has %d names; at most %d are allowed", len(headers), MaxHeaders)
	}
	total := 0
	for name, value := range headers {
		if !isToken(name) {
			return Errorf(CodeBadEvent, "headers: %s is not an HTTP token", quote(name))
		}
		for i := 0; i < len(value); i++ {
			if c := value[i]; c == '\r' || c == '\n' || c == 0 {
				return Errorf(CodeBadEvent, "headers: the value of %s has CR, LF or NUL", quote(name))
			}
		}
		if !utf8.ValidString(value) {
			return Errorf(CodeBadEvent, "headers: the value of %s is not valid UTF-8", quote(name))
		}
		total += len(name) + len(value)
	}
	if total > MaxHeaderBytes {
		return Errorf(CodeBadEvent, "headers have %d bytes together; at most %d are allowed", total, MaxHeaderBytes)
	}
	return nil
}

func checkTags(tags []string) error {
	if len(tags) > MaxTags {
		return Errorf(CodeBadEvent, "tags has %d entries; at most %d are allowed", len(tags), MaxTags)
	}
	for i, tag := range tags {
		if tag == "" {
			return Errorf(CodeBadEvent, "tags[%d] is empty", i)
		}
		if err := checkText("tags["+strconv.Itoa(i)+"]", tag, MaxTagBytes); err != nil {
			return err
		}
	}
	return nil
}

func checkCausedBy(ids []string) error {
	if len(ids) > MaxCausedBy {
		return Errorf(CodeBadEvent, "caused_by has %d ids; at most %d are allowed", len(ids), MaxCausedBy)
	}
	for i, id := range ids {
		if err := checkID("caused_by["+strconv.Itoa(i)+"]", id); err != nil {
			return err
		}
	}
	return nil
}

// isToken reports whether s is a token of RFC 9110, section 5.6.2: what an HTTP
// field name may be.
func isToken(s string) bool {
	if s == "" {
		return false
	}
	for i := 0; i < len(s); i++ {
		c := s[i]
		if isNameByte(c) {
			continue
		}
		switch c {
		case '!', '#', '$', '%', '&', '\'', '*', '+', '.', '^', '`', '|', '~':
		default:
			return false
		}
	}
	return true
}

// quote shows an offending value in a message: escaped, and cut where it is
// long, so that a message stays one readable line.
func quote(s string) string {
	const most = 48
	if len(s) <= most {
		return strconv.Quote(s)
	}
	cut := most
	for cut > 0 && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return strconv.Quote(s[:cut]) + "…"
}

// runeAt returns the character of s that starts at byte i.
func runeAt(s string, i int) string {
	_, size := utf8.DecodeRuneInString(s[i:])
	return s[i : i+size]
}
