package postgres

import "testing"

// What a benchmark with a hub needs. It is in a package of its own: a hub imports this one.
const RowsOfBench = rowsOfBench

var FillForBench = fillBench

// OpenForBench returns the outbox of a database that nobody else uses.
func OpenForBench(b *testing.B) *Store {
	_, s := open(b)
	return s
}
