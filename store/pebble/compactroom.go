package pebble

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	pdb "github.com/cockroachdb/pebble/v2"
)

// # Room given back
//
// Pebble drops a table that range deletions cover without reading it. What it leaves are tables
// that are covered in part, as at the ends of what one flush has, and what was written again,
// which waits above the range deletions, not compressed, for other writes to push it down. So at
// the end of a pass as a whole Pebble compacts what went by range: long runs of pieces, and the
// key index of the topic. That writes what is kept of them once more, and at most a table at each end, and
// no range deletion is left there.
//
// The runs are in the row until that is done. Done again, it finds everything in the last level.

// run is a stretch of the log: from an offset to the one after it, and the bytes of the dead
// records that went.
type run struct{ from, to, bytes uint64 }

// mostRuns is how many runs a row has.
const mostRuns = 64

// noteRun notes that so many bytes of the piece, up to an offset, have gone.
func (p *compactionStep) noteRun(to uint64, bytes int) {
	if bytes > 0 && p.s.whole.isWorth {
		p.addRun(run{p.piece, to, uint64(bytes)})
	}
}

func (c *compaction) addRun(r run) {
	if last := len(c.runs) - 1; last >= 0 && c.runs[last].to == r.from {
		c.runs[last].to = r.to
		c.runs[last].bytes += r.bytes
		return
	}
	if c.runs = append(c.runs, r); len(c.runs) > mostRuns {
		least := 0
		for i, r := range c.runs {
			if r.bytes < c.runs[least].bytes {
				least = i
			}
		}
		c.runs = slices.Delete(c.runs, least, least+1)
	}
}

func (c *compaction) appendRuns(dst []byte) []byte {
	for _, r := range c.runs {
		for _, n := range []uint64{r.from, r.to, r.bytes} {
			dst = binary.AppendUvarint(dst, n)
		}
	}
	return dst
}

func (c *compaction) decodeRuns(rest []byte) error {
	for len(rest) > 0 {
		var r run
		for _, n := range []*uint64{&r.from, &r.to, &r.bytes} {
			size := 0
			if *n, size = binary.Uvarint(rest); size <= 0 {
				return fmt.Errorf("the runs of the compaction end with %x", rest)
			}
			rest = rest[size:]
		}
		c.runs = append(c.runs, r)
	}
	return nil
}

// settling is a part of the keys that Pebble is to compact.
type settling struct {
	topic uint32
	run   run // the key index where it is the zero run
}

func (g settling) bounds() pdb.IterOptions {
	if g.run == (run{}) {
		return numberBounds(tagKey, g.topic)
	}
	return pdb.IterOptions{LowerBound: appendEventKey(nil, g.topic, g.run.from), UpperBound: appendEventKey(nil, g.topic, g.run.to)}
}

// settle begins to give back room, or ends it with the pass.
func (p *compactionStep) settle() {
	p.stage, p.next = stageSettle, 1
	p.runs = slices.DeleteFunc(p.runs, func(r run) bool { return r.bytes < p.s.compacting.settle })
	if p.ranged < p.s.compacting.settleKeys || p.ranged < p.live {
		p.ranged = 0
	}
	p.settleNext()
}

// settleNext says what is next, without what Pebble has done: the runs first, which are in tables of
// the key index too as long as these are young.
func (p *compactionStep) settleNext() {
	for ; len(p.runs) > 0 || p.ranged > 0; p.s.settled = nil {
		g := settling{topic: p.topic.id}
		if len(p.runs) > 0 {
			g.run = p.runs[0]
		}
		switch {
		case p.s.settled == nil || *p.s.settled != g:
			p.settling = &g
			return
		case len(p.runs) > 0:
			p.runs = p.runs[1:]
		default:
			p.ranged = 0
		}
	}
	p.end()
}

// giveBack has Pebble compact. It waits for that, and holds no lock.
func (s *Store) giveBack(ctx context.Context, g *settling) error {
	bounds := g.bounds()
	if err := s.db.Compact(ctx, bounds.LowerBound, bounds.UpperBound, false); err != nil {
		return fmt.Errorf("give back the room of what was removed: %w", err)
	}
	s.sweeper.stepping.Lock()
	defer s.sweeper.stepping.Unlock()
	s.settled = g
	return nil
}
