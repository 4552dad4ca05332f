package bench

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"strconv"

	"github.com/gobwas/ws"

	"eventhub"
	"eventhub/internal/eventid"
	"eventhub/wire"
)

// appendFrame appends one masked frame.
func appendFrame(dst []byte, op ws.OpCode, payload []byte) []byte {
	f := frame{b: dst}
	f.make(op, payload)
	return f.b
}

// frame is a masked frame whose text can be changed in place.
type frame struct {
	b    []byte
	text int // where the text begins
	mask [4]byte
}

// make appends the frame to b, which is empty where the frame is to be patched.
func (f *frame) make(op ws.OpCode, payload []byte) {
	n := rand.Uint32()
	f.mask = [4]byte{byte(n), byte(n >> 8), byte(n >> 16), byte(n >> 24)}
	h := ws.Header{Fin: true, OpCode: op, Masked: true, Length: int64(len(payload)), Mask: f.mask}
	out := bytes.NewBuffer(f.b)
	_ = ws.WriteHeader(out, h) // fails for negative lengths only
	f.b = out.Bytes()
	f.text = len(f.b)
	f.b = append(f.b, payload...)
	ws.Cipher(f.b[f.text:], f.mask, 0)
}

// patch overwrites the text at the position with another one of that length.
func (f *frame) patch(at int, text []byte) {
	b := f.b[f.text+at:]
	for i, c := range text {
		b[i] = c ^ f.mask[(at+i)&3]
	}
}

// corrBase makes all correlations of slots six digits long.
const corrBase = 100_000

// maxSlots bounds how many frames one connection has under way.
const maxSlots = 10_000

// Fixed texts, as long as those that are patched in.
const (
	stampText = `1000000000000000000` // nanoseconds of the run, from stampBase
	stampBase = 1_000_000_000_000_000_000
	keyText   = "key-00000000"
)

// shape says what the events of a load look like.
type shape struct {
	topic string
	bytes int  // of the payload
	batch int  // events a frame
	keys  int  // how many different keys; 0: none
	ids   bool // ids as the SDK gives them
	stamp bool // the payload says when it was due
}

// template is a frame of one slot: everything but the places below is made once.
type template struct {
	frame
	ids, keys, stamps []int // where they are in the text
}

// newTemplate makes the frame of a slot. Its payloads are random text, which no
// store can compress by much.
func newTemplate(s *shape, slot int, random *rand.Rand) (*template, error) {
	events := make([]eventhub.Event, s.batch)
	for i := range events {
		events[i] = eventhub.Event{Topic: s.topic, Payload: payload(s, random)}
		if s.ids {
			events[i].ID = eventid.New()
		}
		if s.keys > 0 {
			events[i].Key = keyText
		}
	}
	var text []byte
	var err error
	if s.batch == 1 {
		text, err = wire.AppendPublish(nil, uint64(corrBase+slot), &events[0])
	} else {
		text, err = wire.AppendPublishBatch(nil, uint64(corrBase+slot), events)
	}
	if err != nil {
		return nil, err
	}
	if len(text) > wire.MaxFrameBytes {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "a batch of %d events makes a frame of %d bytes; at most %d are allowed", s.batch, len(text), wire.MaxFrameBytes)
	}
	t := &template{}
	if s.ids {
		t.ids = places(text, idMark)
	}
	if s.keys > 0 {
		t.keys = places(text, keyMark)
	}
	if s.stamp {
		t.stamps = places(text, stampMark)
	}
	t.make(ws.OpText, text)
	return t, nil
}

// places returns where the values that follow a name begin.
func places(text, name []byte) (at []int) {
	for from := 0; ; {
		i := bytes.Index(text[from:], name)
		if i < 0 {
			return at
		}
		from += i + len(name)
		at = append(at, from)
	}
}

// payload is a JSON string of so many bytes, or an object with the time.
func payload(s *shape, random *rand.Rand) []byte {
	before, after := `"`, `"`
	if s.stamp {
		before, after = `{"t":`+stampText+`,"x":"`, `"}`
	}
	n := s.bytes - len(before) - len(after)
	return append(appendNoise([]byte(before), n, random), after...)
}

// leastPayload is the smallest payload of a shape.
func (s *shape) leastPayload() int {
	if s.stamp {
		return len(`{"t":` + stampText + `,"x":""}`)
	}
	return len(`""`)
}

// appendNoise appends n characters of random text.
func appendNoise(dst []byte, n int, random *rand.Rand) []byte {
	raw := make([]byte, n)
	for i := range raw {
		raw[i] = byte(random.Uint32())
	}
	return append(dst, base64.RawURLEncoding.EncodeToString(raw)[:n]...)
}

// fresh patches ids and keys before the frame is sent once more. Ids are UUIDv7:
// now in their first twelve digits, serial in the last twelve.
func (t *template) fresh(nowMilli int64, serial *uint64, keys int, random *rand.Rand) {
	var digits [12]byte
	for _, at := range t.ids {
		hex(digits[:], uint64(nowMilli))
		t.patch(at, digits[:8])
		t.patch(at+9, digits[8:])
		*serial++
		hex(digits[:], *serial)
		t.patch(at+24, digits[:])
	}
	for _, at := range t.keys {
		n := random.IntN(keys)
		for i := 7; i >= 0; i-- {
			digits[i] = byte('0' + n%10)
			n /= 10
		}
		t.patch(at+len("key-"), digits[:8])
	}
}

// stamp patches the time at which the frame was due.
func (t *template) stamp(due int64) {
	if len(t.stamps) == 0 {
		return
	}
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], stampBase+due, 10)
	for _, at := range t.stamps {
		t.patch(at, text)
	}
}

func hex(dst []byte, n uint64) {
	const digits = "0123456789abcdef"
	for i := len(dst) - 1; i >= 0; i-- {
		dst[i] = digits[n&15]
		n >>= 4
	}
}

// The beginnings of frames that are read without a decoder.
var (
	okBegin     = []byte(`{"op":"OK","corr":"`)
	eventBegin  = []byte(`{"op":"EVENT`) // and EVENTS
	eventMark   = []byte(`"event":{"offset":`)
	idMark      = []byte(`"id":"`)
	keyMark     = []byte(`"key":"`)
	stampMark   = []byte(`"payload":{"t":`)
	leaseMark   = []byte(`"lease":"`)
	attemptMark = []byte(`"ctx":{"attempt":`)
)

// slotOf returns the slot that an OK answers; ok is false for everything else.
func slotOf(message []byte) (slot int, ok bool) {
	rest, ok := bytes.CutPrefix(message, okBegin)
	if !ok || len(rest) < 7 || rest[6] != '"' {
		return 0, false
	}
	n, ok := number(rest[:6])
	return int(n) - corrBase, ok
}

// number reads decimal digits.
func number(b []byte) (n int64, ok bool) {
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, len(b) > 0
}

// cutDelivery cuts the first event off what is left of an EVENT or EVENTS frame:
// from its offset up to the next event, so that its ctx is in it. The payloads of
// this package hold no such mark.
func cutDelivery(rest []byte) (event, after []byte, ok bool) {
	at := bytes.Index(rest, eventMark)
	if at < 0 {
		return nil, nil, false
	}
	event = rest[at+len(eventMark):]
	if end := bytes.Index(event, eventMark); end >= 0 {
		return event[:end], event[end:], true
	}
	return event, nil, true
}

// following returns the text that is in quotes after a mark, the first one.
func following(event, mark []byte) []byte {
	at := bytes.Index(event, mark)
	if at < 0 {
		return nil
	}
	text := event[at+len(mark):]
	return text[:max(bytes.IndexByte(text, '"'), 0)]
}

// dueOf returns when a delivered event was due, in nanoseconds of the run.
func dueOf(event []byte) (due int64, err error) {
	at := bytes.Index(event, stampMark)
	if at >= 0 && len(event) >= at+len(stampMark)+len(stampText) {
		from := at + len(stampMark)
		if n, ok := number(event[from : from+len(stampText)]); ok {
			return n - stampBase, nil
		}
	}
	return 0, fmt.Errorf("the event %.80q does not say when it was due", event)
}

// again reports whether a delivery is not the first attempt. Tails have no ctx.
func again(event []byte) bool {
	at := bytes.Index(event, attemptMark)
	return at >= 0 && !bytes.HasPrefix(event[at+len(attemptMark):], []byte("1,"))
}
