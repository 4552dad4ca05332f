package main

import "testing"

// TestProbeAddr: a hub that listens on all addresses is asked at loopback.
func TestProbeAddr(t *testing.T) {
	for _, tt := range []struct{ ops, probe string }{
		{"127.0.0.1:8082", "127.0.0.1:8082"},
		{"hub.example:8082", "hub.example:8082"},
		{"0.0.0.0:8082", "127.0.0.1:8082"},
		{":8082", "127.0.0.1:8082"},
		{"[::]:8082", "[::1]:8082"},
		{"[fd00::7]:8082", "[fd00::7]:8082"},
	} {
		if got, err := probeAddr(tt.ops); got != tt.probe || err != nil {
			t.Errorf("probeAddr(%s) = %s, %v; want %s", tt.ops, got, err, tt.probe)
		}
	}
	if got, err := probeAddr("127.0.0.1:0"); err == nil {
		t.Errorf("port 0 is asked at %s", got)
	}
}
