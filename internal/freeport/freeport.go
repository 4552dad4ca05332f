// Package freeport finds addresses for servers of tests that others are told of before they listen, or that come back
// where they were. A port of :0 that was closed again is anybody's: the system gives it to the next test that asks for
// one, or to a client that connects.
package freeport

import (
	"fmt"
	"math/rand/v2"
	"net"
)

// The ports lie below those that the system gives to whoever asks for any.
const first, ports = 20_000, 10_000

// On returns an address of a host, an IP address of this machine, where nobody listens.
func On(host string) (addr string, err error) {
	for range 1000 {
		addr := net.JoinHostPort(host, fmt.Sprint(first+rand.IntN(ports)))
		l, listenErr := net.Listen("tcp", addr)
		if listenErr == nil {
			return addr, l.Close()
		}
		err = listenErr
	}
	return "", fmt.Errorf("freeport: no port is free: %w", err)
}
