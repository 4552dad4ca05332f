package main

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
)

// TestRepliesAreCut: replies come whole, whatever the reads bring.
func TestRepliesAreCut(t *testing.T) {
	whole := []string{"+OK\r\n", ":12\r\n", "$-1\r\n", "*-1\r\n", "$5\r\n1-\r\n0\r\n", "*2\r\n$1\r\na\r\n*1\r\n:3\r\n", "*0\r\n"}
	stream := strings.Join(whole, "")
	for _, step := range []int{1, 3, len(stream)} {
		here, there := net.Pipe()
		go func() {
			for rest := stream; rest != ""; {
				n := min(step, len(rest))
				if _, err := there.Write([]byte(rest[:n])); err != nil {
					return // the test has failed
				}
				rest = rest[n:]
			}
		}()
		p := &replies{conn: here, buf: make([]byte, 8)}
		var got []string
		for len(got) < len(whole) {
			reply, ok, err := p.next()
			if err == nil && !ok {
				err = p.fill()
			}
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				got = append(got, string(reply))
			}
		}
		if !slices.Equal(got, whole) {
			t.Errorf("in steps of %d: %q; want %q", step, got, whole)
		}
		here.Close()
	}
}

func TestErrorsOfRedisAreErrors(t *testing.T) {
	b := []byte("-OOM no memory\r\n")
	_, ok, err := (&replies{buf: b, w: len(b)}).next()
	if ok || err == nil || !strings.Contains(err.Error(), "OOM no memory") {
		t.Errorf("next = %t, %v", ok, err)
	}
}

// TestEntriesAndTheirAck: what XREADGROUP answers, and the XACK of it.
func TestEntriesAndTheirAck(t *testing.T) {
	m := &groupMember{}
	entries := "*2\r\n*2\r\n$3\r\n1-0\r\n*2\r\n$1\r\nd\r\n$2\r\nab\r\n*2\r\n$3\r\n1-1\r\n*2\r\n$1\r\nd\r\n$0\r\n\r\n"
	if err := m.parse([]byte("*1\r\n*2\r\n$5\r\nbench\r\n" + entries)); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range m.entries {
		got = append(got, fmt.Sprintf("%s=%s", e.id, e.payload))
	}
	if !slices.Equal(got, []string{"1-0=ab", "1-1="}) {
		t.Errorf("entries %q", got)
	}
	if want := string(command("XACK", "bench", "g", "1-0", "1-1")); string(m.out) != want {
		t.Errorf("the ack is %q; want %q", m.out, want)
	}
	for _, bad := range []string{"*1\r\n", "*1\r\n*2\r\n$5\r\nbench\r\n*1\r\n*2\r\n$9\r\n1-0\r\n", "*1\r\n*2\r\n$5\r\nbench\r\n" + entries + ":1\r\n"} {
		if err := new(groupMember).parse([]byte(bad)); err == nil {
			t.Errorf("%q is understood", bad)
		}
	}
	if err := m.parse([]byte("*-1\r\n")); err != nil {
		t.Errorf("nothing came: %v", err)
	}
}
