package ws

import (
	"io"
	"sync"
	"unicode/utf8"

	gws "github.com/gobwas/ws"

	"eventhub/internal/budget"
	"eventhub/internal/wsframe"
	"eventhub/wire"
)

const (
	// baseBytes is the read buffer that a connection keeps for itself.
	baseBytes = 4 << 10
	// burstBytes is the one that it borrows while it has more to say.
	burstBytes = 32 << 10
	// maxFragments bounds the pieces of one message, empty ones too, with one more for each
	// wsframe.PieceBytes: who sends a message by single bytes costs a wake-up for each, and is closed soon.
	maxFragments = 1 << 10
)

var bursts = sync.Pool{New: func() any { return new([burstBytes]byte) }}

// violation is what a peer did that its connection does not survive.
type violation = wsframe.Violation

// frameReader cuts what a peer sends into messages and control frames.
//
// It reads as much at once as its buffer takes. The buffer follows the demand: the
// connection's own baseBytes; a borrowed burst while reads fill the buffer or a frame needs
// more; and for a frame that is larger still a buffer of its own, which doubles as the bytes
// really arrive, so that a header alone pins nothing, and which ends with the frame, so that
// nothing after it comes along. Each fill decides for itself, so that the ping of an idle
// connection makes it give back what it had borrowed.
//
// What it holds beyond its own buffer it takes from a budget before the first byte of it
// is held. A message takes all that it needs when its header is there, so that those that
// are under way do not wait for each other. A burst may hold the beginning of a message
// that needs more: see Budget.Grow for connections that all do.
//
// It is not safe for concurrent use.
type frameReader struct {
	wsframe.Cutter
	received int64 // bytes in all
	checked  int   // bytes of the fragments so far that are valid UTF-8
	memory   *budget.Budget
	claimed  int // bytes taken from it

	full  bool // the last read filled the buffer
	base  []byte
	burst *[burstBytes]byte // nil unless borrowed
}

func newFrameReader(limit int, memory *budget.Budget) frameReader {
	base := make([]byte, baseBytes)
	cutter := wsframe.Cutter{Side: gws.StateServerSide, Limit: limit, MaxFragments: maxFragments, Buf: base}
	return frameReader{Cutter: cutter, memory: memory, base: base}
}

// claimFor returns what a message in fragments of at most limit bytes takes: what has
// come of it, and the frame under way.
func claimFor(limit int) int { return burstBytes + 2*limit }

// claim returns how many bytes of memory the message under way takes.
func (f *frameReader) claim() int {
	switch {
	case f.Fragments > 0 || f.Part:
		return claimFor(f.Limit)
	case f.Need > burstBytes:
		return f.Need
	case f.Need > baseBytes:
		return burstBytes
	}
	return 0
}

// lacks returns how many bytes have to be taken from the budget, and passed to took,
// before fill.
func (f *frameReader) lacks() int { return max(0, f.claim()-f.claimed) }

func (f *frameReader) took(n int) { f.claimed += n }

// halfway reports whether a message has begun and is not complete.
func (f *frameReader) halfway() bool { return f.Need > 0 || f.Fragments > 0 }

// preload puts bytes that were read elsewhere before all others.
func (f *frameReader) preload(b []byte) {
	f.Preload(b)
	f.received += int64(len(b))
}

// fill reads once, after making room. What next returned before is invalid
// then.
func (f *frameReader) fill(conn io.Reader) error {
	f.makeRoom()
	n, err := f.Read(conn)
	f.received += int64(n)
	f.full = f.W == len(f.Buf)
	return err
}

// makeRoom moves what is left into the smallest buffer that serves.
func (f *frameReader) makeRoom() {
	want, keep := f.Need, f.claim()
	// A burst is faster, and no more than that: without memory it goes on in steps.
	if f.full && (f.claimed >= burstBytes || f.memory.Take(burstBytes)) {
		f.claimed = max(f.claimed, burstBytes)
		want, keep = max(want, burstBytes), max(keep, burstBytes)
	}
	into := f.Buf
	switch {
	case want <= baseBytes:
		into = f.base
	case want <= burstBytes:
		if f.burst == nil {
			f.burst = bursts.Get().(*[burstBytes]byte)
		}
		into = f.burst[:]
	case want > len(f.Buf):
		into = make([]byte, min(want, max(2*len(f.Buf), 2*burstBytes)))
	}
	f.Move(into)
	if f.burst != nil && &into[0] != &f.burst[0] {
		f.giveBack()
	}
	f.release(keep)
}

// release gives the memory back that is not needed, except keep bytes.
func (f *frameReader) release(keep int) {
	if f.claimed > keep {
		f.memory.Give(f.claimed - keep)
		f.claimed = keep
	}
}

// giveBack returns the borrowed buffer, which must not be in use.
func (f *frameReader) giveBack() {
	if f.burst != nil {
		bursts.Put(f.burst)
		f.burst = nil
	}
}

// close releases the buffers. The reader must not be used afterwards.
func (f *frameReader) close() {
	f.giveBack()
	f.Buf, f.base = nil, nil
	f.Discard()
	f.release(0)
}

// next returns the next text message or control frame out of what was read, its
// payload unmasked and valid until the next fill; ok is false when nothing
// complete is left. After an error, a *violation, framing is lost.
func (f *frameReader) next() (op gws.OpCode, payload []byte, ok bool, err error) {
	op, payload, ok, err = f.Next()
	valid := true
	switch {
	case err != nil:
	case ok && op == gws.OpText:
		valid = utf8.Valid(payload[min(f.checked, len(payload)):])
		f.checked = 0
	case !ok && f.Fragments > 0:
		valid = f.checkFragments()
	}
	if !valid {
		return 0, nil, false, &violation{Code: wire.CloseInvalidUTF8, Text: "a text message is not valid UTF-8"}
	}
	return op, payload, ok, err
}

// checkFragments reports whether what came so far of a message in fragments may be the beginning
// of valid UTF-8: who sends something else is not to be read to the end of it. Each byte is
// looked at once.
func (f *frameReader) checkFragments() bool {
	message := f.Message()
	fresh := message[min(f.checked, len(message)):]
	whole := len(fresh)
	for i := 1; i <= min(utf8.UTFMax-1, len(fresh)); i++ {
		if last := fresh[len(fresh)-i:]; utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				whole -= i
			}
			break
		}
	}
	f.checked += whole
	return utf8.Valid(fresh[:whole])
}

// parseClose returns the code of a peer's close frame, 0 where it has none.
func parseClose(payload []byte) (gws.StatusCode, error) {
	if len(payload) == 0 {
		return 0, nil
	}
	code, reason := gws.ParseCloseFrameData(payload)
	if len(payload) == 1 || !closeCodeAllowed(code) {
		return 0, &violation{Code: wire.CloseProtocolError, Text: "the close frame has no valid code"}
	}
	if !utf8.ValidString(reason) {
		return 0, &violation{Code: wire.CloseInvalidUTF8, Text: "the reason of the close frame is not valid UTF-8"}
	}
	return code, nil
}

// closeCodeAllowed reports whether a peer may send the code: those of RFC 6455
// that go over the wire, the three registered since (1012 to 1014), and the
// ranges of libraries and applications.
func closeCodeAllowed(code gws.StatusCode) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}
