// Package transfer is what both ends of an export, an import and a backup agree
// on: the names of what follows the last byte, the checksum, and the list of what compaction may have removed.
package transfer

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash"

	"eventhub"
)

const (
	// ChecksumTrailer and CountTrailer are sent after the body: an answer without
	// them was cut off, whatever the connection says.
	ChecksumTrailer = "X-Eventhub-Checksum"
	CountTrailer    = "X-Eventhub-Count"
	// CompactedTrailer is sent besides where compaction may have removed events that are asked
	// for: a JSON array of Gap. A batch of CloudEvents has it as a header.
	CompactedTrailer = "X-Eventhub-Compacted"

	// NDJSON is the content type of events, one in each line.
	NDJSON = "application/x-ndjson"
	// Tar is that of a backup.
	Tar = "application/x-tar"

	// MaxLine bounds one line, in bytes without its end: an event with the largest
	// payload, and all that may be around it.
	MaxLine = 1280 << 10
)

// Gap is what compaction may have removed of a topic: see eventhub.Gap.
type Gap struct {
	Topic string `json:"topic"`
	After uint64 `json:"after"`
	First uint64 `json:"first"`

	Compacted  uint64 `json:"compacted,omitempty"`
	Tombstones uint64 `json:"tombstones,omitempty"`
}

// maxGaps bounds the gaps of a list: Go's client takes trailers of 4 KiB together, and a name
// may have 240 bytes.
const maxGaps = 7

// Gaps gathers gaps, of topics one after the other, for CompactedTrailer.
type Gaps struct {
	pattern string
	list    []Gap
}

// NewGaps returns a list of gaps in topics of a pattern.
func NewGaps(pattern string) *Gaps { return &Gaps{pattern: pattern} }

// Add adds a gap, in place of one of the same topic that was added last. What is too much is put
// together in one gap that has the pattern for its topic, and says no less than each of its parts.
func (l *Gaps) Add(g eventhub.Gap) {
	switch n := len(l.list); {
	case n > 0 && l.list[n-1].Topic == g.Topic:
		l.list[n-1] = Gap(g)
	case n < maxGaps:
		l.list = append(l.list, Gap(g))
	default:
		last := &l.list[n-1]
		last.Topic = l.pattern
		last.After, last.First = min(last.After, g.After), min(last.First, g.First)
		last.Compacted, last.Tombstones = max(last.Compacted, g.Compacted), max(last.Tombstones, g.Tombstones)
	}
}

// String returns the list as it is sent, empty where there is none.
func (l *Gaps) String() string {
	if len(l.list) == 0 {
		return ""
	}
	text, err := json.Marshal(l.list)
	if err != nil {
		panic(err) // strings and numbers
	}
	return string(text)
}

// ParseGaps is the opposite of String.
func ParseGaps(text string) ([]eventhub.Gap, error) {
	if text == "" {
		return nil, nil
	}
	var list []Gap
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Errorf("%s %.200q: %w", CompactedTrailer, text, err)
	}
	gaps := make([]eventhub.Gap, len(list))
	for i, g := range list {
		gaps[i] = eventhub.Gap(g)
	}
	return gaps, nil
}

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
