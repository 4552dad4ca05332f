package ws

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"unicode/utf8"

	gws "github.com/gobwas/ws"

	"eventhub/internal/budget"
	"eventhub/wire"
)

const (
	// baseBytes is the read buffer that a connection keeps for itself.
	baseBytes = 4 << 10
	// burstBytes is the one that it borrows while it has more to say.
	burstBytes = 32 << 10
	// maxFragments bounds the pieces of one message, empty ones too. A message of
	// full size may come in pieces of 80 bytes.
	maxFragments = 16 << 10
)

var bursts = sync.Pool{New: func() any { return new([burstBytes]byte) }}

// violation is what a peer did that its connection does not survive, with the
// close code that reports it.
type violation struct {
	code gws.StatusCode
	text string
}

func (v *violation) Error() string { return v.text }

// frameReader cuts what a peer sends into messages and control frames.
//
// It reads as much at once as its buffer takes and hands out every complete
// frame in place; only messages that come in fragments are put together
// elsewhere. The buffer follows the demand: the connection's own baseBytes; a
// borrowed burst while reads fill the buffer or a frame needs more; and for a
// frame that is larger still a buffer of its own, which doubles as the bytes
// really arrive, so that a header alone pins nothing, and which ends with the
// frame, so that nothing after it comes along. Each fill decides for itself, so that
// the ping of an idle connection makes it give back what it had borrowed.
//
// Every limit is judged by the header, before the payload has come.
//
// What it holds beyond its own buffer it takes from a budget, as a whole before the
// first byte of it is held: a message that is begun can be completed, so that those
// that are under way never wait for each other.
//
// It is not safe for concurrent use.
type frameReader struct {
	limit    int   // bytes of one message
	received int64 // bytes in all
	memory   *budget.Budget
	claimed  int // bytes taken from it

	buf   []byte // bytes r to w are read and not handed out
	r, w  int
	need  int  // size of the incomplete frame at r, as far as is known
	part  bool // that frame is one of several of a message
	full  bool // the last read filled buf
	base  []byte
	burst *[burstBytes]byte // nil unless borrowed

	fragments int    // of the message under way; 0: none is
	message   []byte // what they carried

	src     bytes.Reader // feeds the header reader without a copy
	scratch [gws.MaxHeaderSize]byte
}

func newFrameReader(limit int, memory *budget.Budget) frameReader {
	base := make([]byte, baseBytes)
	return frameReader{limit: limit, memory: memory, base: base, buf: base}
}

// claimFor returns what a message in fragments of at most limit bytes takes: what has
// come of it, and the frame under way.
func claimFor(limit int) int { return burstBytes + 2*limit }

// claim returns how many bytes of memory the message under way takes.
func (f *frameReader) claim() int {
	switch {
	case f.fragments > 0 || f.part:
		return claimFor(f.limit)
	case f.need > burstBytes:
		return f.need
	case f.need > baseBytes:
		return burstBytes
	}
	return 0
}

// lacks returns how many bytes have to be taken from the budget, and passed to took,
// before fill.
func (f *frameReader) lacks() int { return max(0, f.claim()-f.claimed) }

func (f *frameReader) took(n int) { f.claimed += n }

// halfway reports whether a message has begun and is not complete.
func (f *frameReader) halfway() bool { return f.need > 0 || f.fragments > 0 }

// preload puts bytes that were read elsewhere before all others.
func (f *frameReader) preload(b []byte) {
	if len(b) > len(f.buf) {
		f.buf = make([]byte, len(b))
	}
	f.w = copy(f.buf, b)
	f.received += int64(f.w)
}

// fill reads once, after making room. What next returned before is invalid
// then.
func (f *frameReader) fill(conn io.Reader) error {
	f.makeRoom()
	n, err := conn.Read(f.buf[f.w:])
	f.w += n
	f.received += int64(n)
	f.full = f.w == len(f.buf)
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// makeRoom moves what is left into the smallest buffer that serves.
func (f *frameReader) makeRoom() {
	want, keep := f.need, f.claim()
	// A burst is faster, and no more than that: without memory it goes on in steps.
	if f.full && (f.claimed >= burstBytes || f.memory.Take(burstBytes)) {
		f.claimed = max(f.claimed, burstBytes)
		want, keep = max(want, burstBytes), max(keep, burstBytes)
	}
	into := f.buf
	switch {
	case want <= baseBytes:
		into = f.base
	case want <= burstBytes:
		if f.burst == nil {
			f.burst = bursts.Get().(*[burstBytes]byte)
		}
		into = f.burst[:]
	case want > len(f.buf):
		into = make([]byte, min(want, max(2*len(f.buf), 2*burstBytes)))
	}
	left := copy(into, f.buf[f.r:f.w])
	f.buf, f.r, f.w = into, 0, left
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

// discard forgets what was read and not handed out.
func (f *frameReader) discard() {
	f.r, f.w, f.need, f.part = 0, 0, 0, false
	f.message, f.fragments = nil, 0
}

// close releases the buffers. The reader must not be used afterwards.
func (f *frameReader) close() {
	f.giveBack()
	f.buf, f.base, f.message = nil, nil, nil
	f.release(0)
}

// next returns the next text message or control frame out of what was read, its
// payload unmasked and valid until the next fill; ok is false when nothing
// complete is left. After an error, a *violation, framing is lost.
func (f *frameReader) next() (op gws.OpCode, payload []byte, ok bool, err error) {
	for {
		h, size, ok, err := f.header()
		if !ok || err != nil {
			return 0, nil, false, err
		}
		f.need = size + int(h.Length)
		f.part = !h.Fin
		if f.w-f.r < f.need {
			return 0, nil, false, nil
		}
		payload := f.buf[f.r+size : f.r+f.need : f.r+f.need]
		f.r += f.need
		f.need, f.part = 0, false
		gws.Cipher(payload, h.Mask, 0)
		if h.OpCode.IsControl() {
			return h.OpCode, payload, true, nil
		}
		if payload, ok = f.assemble(payload, h.Fin); !ok {
			continue
		}
		if !utf8.Valid(payload) {
			return 0, nil, false, &violation{wire.CloseInvalidUTF8, "a text message is not valid UTF-8"}
		}
		return gws.OpText, payload, true, nil
	}
}

// assemble adds one data frame and returns the message that it completes.
func (f *frameReader) assemble(payload []byte, fin bool) (message []byte, ok bool) {
	if fin && f.fragments == 0 {
		return payload, true
	}
	f.message = append(f.message, payload...)
	f.fragments++
	if !fin {
		return nil, false
	}
	message = f.message
	f.message, f.fragments = nil, 0
	return message, true
}

// header reads the header at r and judges it; ok is false when it is not all
// there.
func (f *frameReader) header() (h gws.Header, size int, ok bool, err error) {
	if f.r == f.w {
		f.need, f.part = 0, false
		return h, 0, false, nil
	}
	f.src.Reset(f.buf[f.r:f.w])
	h, err = gws.ReadHeaderBuffer(&f.src, f.scratch[:])
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		f.need, f.part = gws.MaxHeaderSize, false
		return h, 0, false, nil
	}
	if err != nil {
		return h, 0, false, &violation{wire.CloseProtocolError, err.Error()}
	}
	size = f.w - f.r - f.src.Len()
	return h, size, true, f.judge(h, size)
}

func (f *frameReader) judge(h gws.Header, size int) error {
	state := gws.StateServerSide
	if f.fragments > 0 {
		state = state.Set(gws.StateFragmented)
	}
	if err := gws.CheckHeader(h, state); err != nil {
		return &violation{wire.CloseProtocolError, err.Error()}
	}
	switch {
	case size != gws.HeaderSize(h):
		return &violation{wire.CloseProtocolError, "the length is not in its shortest form"}
	case h.OpCode.IsControl():
		return nil
	case h.OpCode == gws.OpBinary:
		return &violation{wire.CloseUnsupported, "frames are text"}
	case h.Length > int64(f.limit-len(f.message)):
		return &violation{wire.CloseTooBig, fmt.Sprintf("a message is longer than %d bytes", f.limit)}
	case f.fragments >= maxFragments:
		return &violation{wire.CloseTooBig, fmt.Sprintf("a message has more than %d fragments", maxFragments)}
	}
	return nil
}

// parseClose returns the code of a peer's close frame, 0 where it has none.
func parseClose(payload []byte) (gws.StatusCode, error) {
	if len(payload) == 0 {
		return 0, nil
	}
	code, reason := gws.ParseCloseFrameData(payload)
	if len(payload) == 1 || !closeCodeAllowed(code) {
		return 0, &violation{wire.CloseProtocolError, "the close frame has no valid code"}
	}
	if !utf8.ValidString(reason) {
		return 0, &violation{wire.CloseInvalidUTF8, "the reason of the close frame is not valid UTF-8"}
	}
	return code, nil
}

// closeCodeAllowed reports whether a peer may send the code: those of RFC 6455
// that go over the wire, the three registered since (1012 to 1014), and the
// ranges of libraries and applications.
func closeCodeAllowed(code gws.StatusCode) bool {
	return code >= 1000 && code <= 1003 || code >= 1007 && code <= 1014 || code >= 3000 && code <= 4999
}
