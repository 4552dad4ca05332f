package ws

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"
	"unicode/utf8"

	gws "github.com/gobwas/ws"

	"eventhub/internal/budget"
	"eventhub/wire"
)

// FuzzFrames reads what may be no frames at all, in chops, against a slow reader of whole frames:
// the same messages and control frames come out, and an end where that one finds one. The memory
// that was taken is given back.
func FuzzFrames(f *testing.F) {
	for _, cases := range [][]conformanceCase{framingCases(), pingCases(), reservedCases(), fragmentCases(), utf8Cases(), closeCases()} {
		for i := range cases {
			if len(cases[i].send) < 4000 {
				f.Add(cases[i].send, uint64(i))
			}
		}
	}
	f.Add(rawHeader(0x81, 1<<63, 8), uint64(1))
	f.Add(rawHeader(0x81, 1<<63-1, 8), uint64(1))
	const limit = 2000
	f.Fuzz(func(t *testing.T, b []byte, seed uint64) {
		want, wantErr := slowFrames(b, limit)
		memory := budget.New(1 << 20)
		r := newFrameReader(limit, memory)
		in := &chopped{bytes.Clone(b), rand.New(rand.NewPCG(seed, 1))}
		var got []string
		var err error
		for err == nil {
			if !memory.Take(r.lacks()) {
				t.Fatalf("%d bytes are wanted", r.lacks())
			}
			r.took(r.lacks())
			if r.fill(in) != nil {
				break
			}
			for err == nil {
				var op gws.OpCode
				var payload []byte
				var ok bool
				if op, payload, ok, err = r.next(); !ok {
					break
				}
				got = append(got, fmt.Sprintf("%x %q", op, payload))
			}
		}
		r.close()
		if !memory.Take(memory.Most()) {
			t.Error("memory is not given back")
		}
		var v *violation
		if err != nil && !errors.As(err, &v) {
			t.Errorf("the error is %T %v", err, err)
		}
		if v != nil && v.Code == wire.CloseInvalidUTF8 && len(got) < len(want) {
			want = want[:len(got)] // it was found before the end of the message, and what came in between
		}
		if fmt.Sprint(got) != fmt.Sprint(want) || (err != nil) != wantErr {
			t.Errorf("got %q, %v; want %q, and an error: %t", got, err, want, wantErr)
		}
	})
}

// slowFrames reads frame by frame with the library, as RFC 6455 has it, and reports whether it met
// something that is not allowed.
func slowFrames(b []byte, limit int64) (all []string, bad bool) {
	in := bytes.NewReader(b)
	var message []byte
	fragments := 0
	for {
		before := in.Len()
		h, err := gws.ReadHeader(in)
		if err != nil {
			return all, !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) || begins(message)
		}
		control := h.OpCode >= 8
		switch {
		case before-in.Len() != gws.HeaderSize(h), !h.Masked, h.Rsv != 0,
			h.OpCode > 2 && h.OpCode < 8, h.OpCode > 10, h.OpCode == gws.OpBinary,
			control && (!h.Fin || h.Length > 125),
			!control && (h.OpCode == gws.OpContinuation) != (fragments > 0),
			!control && h.Length > limit-int64(len(message)),
			!control && fragments >= maxFragments+len(message)/64:
			return all, true
		}
		if int64(in.Len()) < h.Length {
			return all, begins(message)
		}
		payload := make([]byte, h.Length)
		_, _ = io.ReadFull(in, payload)
		for i := range payload {
			payload[i] ^= h.Mask[i%4]
		}
		if control {
			all = append(all, fmt.Sprintf("%x %q", h.OpCode, payload))
			continue
		}
		message = append(message, payload...)
		if fragments++; !h.Fin {
			continue
		}
		if !utf8.Valid(message) {
			return all, true
		}
		all = append(all, fmt.Sprintf("%x %q", gws.OpText, message))
		message, fragments = nil, 0
	}
}

// begins reports whether a message in fragments that has no end yet can not be the beginning of
// text: bytes that are no UTF-8, but for a last code point that may go on.
func begins(message []byte) (bad bool) {
	for len(message) > 0 {
		if !utf8.FullRune(message) {
			return false
		}
		r, n := utf8.DecodeRune(message)
		if r == utf8.RuneError && n == 1 {
			return true
		}
		message = message[n:]
	}
	return false
}
