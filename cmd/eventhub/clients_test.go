package main

import (
	"context"
	"os/exec"
	"testing"
)

// TestClientOfPython: the WebSocket client that Debian has for Python (python3-websockets) talks
// with the hub in fragments and pings, gets texts of all lengths back, and is closed with the code
// of what it did. Those of Node and of Chromium are in sdk/js/test/clients.test.ts.
func TestClientOfPython(t *testing.T) {
	p := startHub(t, "--store", "memory:")
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	// The Python of Debian, whatever other one comes first in the path.
	out, err := exec.CommandContext(ctx, "/usr/bin/python3", "testdata/clients/websockets_client.py", "ws://"+p.ws).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const want = `extensions [] subprotocol None
auth OK
tail OK
came back 0 EVENT True
came back 125 EVENT True
came back 126 EVENT True
came back 65400 EVENT True
came back 65536 EVENT True
came back 1000000 EVENT True
came back 60000 EVENT True
fragments ü€😀
pong 0
pong 124
too long 1009
binary 1003
binary in fragments 1003
too long before AUTH 1009
too much before AUTH 1008
a code of its own 4321
`
	if string(out) != want {
		t.Errorf("the client saw\n%s\nwant\n%s", out, want)
	}
}
