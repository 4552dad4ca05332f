package wire

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"weak"
)

// TestDecoderLetsGoOfTheFrame: when a frame is dealt with nothing of the decoder
// keeps it in memory, whichever way it took and whatever came of it.
func TestDecoderLetsGoOfTheFrame(t *testing.T) {
	for name, frame := range map[string]string{
		"plain":           `{"op":"PUBLISH","corr":"1","topic":"t","payload":{"a":1},"opts":{"key":"k","headers":{"a":"b"}}}`,
		"with escape":     `{"op":"PUBLISH","corr":"\u0031","topic":"t","payload":1,"opts":{"key":"k"}}`,
		"long":            `{"op":"PUBLISH","topic":"t","payload":"` + strings.Repeat("x", maxPlainFrame) + `"}`,
		"batch":           `{"op":"PUBLISH","events":[{"topic":"t","payload":1,"opts":{"id":"x","tags":["a"],"caused_by":["b"]}}]}`,
		"acks":            `{"op":"ACK","topic":"t","group":"g","ids":["a","b"],"lease":["1-2-3",null]}`,
		"ack-and-publish": `{"op":"ACK","topic":"t","group":"g","id":"a","publish":[{"topic":"t","payload":1}]}`,
		"subscribe":       `{"op":"SUBSCRIBE","topic":"t.*","group":"g","opts":{"topics":["a.**"],"filter":{"key":"k","cel":"true"},"from":"after_id","after_id":"x"}}`,
		"bad option":      `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"kee":"k"}}`,
		"bad JSON":        `{"op":"PUBLISH","topic":"t","payload":1,"payload":2}`,
		"unknown op":      `{"op":"SHOUT","topic":"t"}`,
	} {
		t.Run(name, func(t *testing.T) {
			text := new([2 * maxPlainFrame]byte)
			held := weak.Make(text)
			n := copy(text[:], frame)
			var d Decoder
			req := new(Request)
			_ = d.Decode(text[:n:n], req) // what comes of it is for others
			text, req = nil, nil
			runtime.GC()
			if held.Value() != nil {
				t.Error("the decoder still holds the frame")
			}
			runtime.KeepAlive(&d)
		})
	}
}

// TestDecoderForgetsNames: nor does an object of many names leave its mark;
// the JSON reader keeps a list of names.
func TestDecoderForgetsNames(t *testing.T) {
	const most = 64 << 10
	var object []byte
	for i := range 100_000 {
		object = fmt.Appendf(object, `"%x":1,`, i)
	}
	for _, names := range []int{300, len(object) / 8} {
		frame := append([]byte(`{"op":"PUBLISH","topic":"t","payload":{`), object[:bytes.LastIndexByte(object[:8*names], ',')]...)
		frame = append(frame, "}}"...)
		var d Decoder
		req := new(Request)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		if err := d.Decode(frame, req); err != nil {
			t.Fatal(err)
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > most {
			t.Errorf("a decoder keeps %d KiB after a frame of %d bytes; at most %d are right", kept>>10, len(frame), most>>10)
		}
		runtime.KeepAlive(frame)
		runtime.KeepAlive(&d)
	}
}
