// Package transfer is what both ends of an export, an import and a backup agree
// on: the names of what follows the last byte, and the checksum.
package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"hash"
)

const (
	// ChecksumTrailer and CountTrailer are sent after the body: an answer without
	// them was cut off, whatever the connection says.
	ChecksumTrailer = "X-Eventhub-Checksum"
	CountTrailer    = "X-Eventhub-Count"

	// NDJSON is the content type of events, one in each line.
	NDJSON = "application/x-ndjson"
	// Tar is that of a backup.
	Tar = "application/x-tar"

	// MaxLine bounds one line, in bytes without its end: an event with the largest
	// payload, and all that may be around it.
	MaxLine = 1280 << 10
)

// Sum is the checksum of a transfer. That of events is over their lines, each
// with a newline after it, however they travel: as an array, compressed, with
// empty lines between them. So an export and the import of it have the same, which
// is also the SHA-256 of the file between them. It is not for concurrent use.
type Sum struct{ h hash.Hash }

// NewSum returns the checksum of nothing.
func NewSum() *Sum { return &Sum{sha256.New()} }

// Write adds bytes. It does not fail.
func (s *Sum) Write(p []byte) (int, error) { return s.h.Write(p) }

var newline = []byte("\n")

// Line adds a line that comes without its end.
func (s *Sum) Line(line []byte) {
	s.h.Write(line)
	s.h.Write(newline)
}

// String returns the checksum as it is sent: sha256= and 64 hexadecimal digits.
func (s *Sum) String() string { return "sha256=" + hex.EncodeToString(s.h.Sum(nil)) }
