package store

// Marks say how far a topic was compacted, as TopicChange does; the zero Marks that it was not.
type Marks struct{ Compacted, Tombstones uint64 }

// Marks returns the marks of the last read.
func (b *Batch) Marks() Marks { return Marks{b.Compacted, b.Tombstones} }

// Above returns what the marks have to say to a reader that has read up to an offset, its place,
// and knows some marks; the zero Marks where that is nothing. Ends of keys have their mark only
// where more of them may be gone than the reader knows, and where it knows how far values are
// gone, the other mark says no more than that of the ends.
func (m Marks) Above(place uint64, knows Marks) Marks {
	if m.Tombstones <= max(place, knows.Tombstones) {
		m.Tombstones = 0
	}
	if m.Compacted <= max(place, knows.Compacted) {
		m.Compacted = m.Tombstones
	}
	return m
}

// From returns the marks as far as they say something of the offsets from first on.
func (m Marks) From(first uint64) Marks {
	if m.Tombstones < first {
		m.Tombstones = 0
	}
	if m.Compacted < first {
		m.Compacted = 0
	}
	return m
}

// Max returns the higher one of each mark.
func (m Marks) Max(o Marks) Marks {
	return Marks{max(m.Compacted, o.Compacted), max(m.Tombstones, o.Tombstones)}
}
