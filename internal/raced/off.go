//go:build !race

// Package raced says whether a program has the race detector, for tests that cost more with it or need care.
package raced

// Enabled reports whether the race detector is built in.
const Enabled = false
