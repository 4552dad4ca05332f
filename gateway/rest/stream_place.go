package rest

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"eventhub"
)

const (
	// maxPlaceBytes bounds the id of a stream's event. It comes back as a header,
	// and proxies in front of the hub take lines of 8 KiB.
	maxPlaceBytes = 7 << 10
	// placesHead is what precedes the topics: @, a time, a colon and what is known.
	placesHead = 1 + 20 + 1 + eventhub.MaxKnownBytes
	// latestMargin is how far before a stream's beginning the events of a topic may
	// be stamped that come after it: longer than a commit takes.
	latestMargin = 10 * time.Second
)

// places say how far a stream is: after which offset in each topic that it had,
// and from which time on in all others. Their text is the id of each event, so that
// a client that comes back with the last id it saw gets what follows that
// event, in every topic: for a stream of one topic
//
//	orders:1042:lzll2dc0
//
// and for one of several topics the time, the topics that the stream knows
// (eventhub.Knower), and the topic that had an event last at the end:
//
//	@1723140000000:b4-3w5e11264sgsf-lzll2ck8,orders:1042:lzll2dc0,orders.eu:17:lzll2d2s
//
// After each offset comes the time at which its event was committed, in base 36, by which a hub
// sees whether it still has that event.
//
// Where that would be too long the topics in front are left out. They then go on
// from the time: their events come again, and none is lost.
type places struct {
	one   bool   // the stream has one topic for ever
	since int64  // epoch ms: where the topics begin that are not in at
	known string // except for those that came later, which begin at their first event
	at    []spot // the spot that was advanced last is at the end
	bytes int    // of the text of at
}

// spot is a place and its text.
type spot struct {
	topic string
	text  []byte // topic:offset:time, without the time where that is not known
}

func (s *spot) set(offset uint64, ts int64) {
	s.text = append(s.text[:0], s.topic...)
	s.text = append(s.text, ':')
	s.text = strconv.AppendUint(s.text, offset, 10)
	if ts > 0 {
		s.text = append(s.text, ':')
		s.text = strconv.AppendInt(s.text, ts, 36)
	}
}

// advance notes that everything up to offset was sent. ts is when its event was
// committed, 0 where that is not known.
func (p *places) advance(topic string, offset uint64, ts int64) {
	last := len(p.at) - 1
	i := last
	for i >= 0 && p.at[i].topic != topic {
		i--
	}
	var s spot
	if i < 0 {
		s.topic = topic
	} else {
		s = p.at[i]
		p.bytes -= 1 + len(s.text)
		copy(p.at[i:], p.at[i+1:])
		p.at = p.at[:last]
	}
	s.set(offset, ts)
	p.at = append(p.at, s)
	p.bytes += 1 + len(s.text)
	over := 0
	for p.bytes > maxPlaceBytes-placesHead && over < len(p.at)-1 {
		p.bytes -= 1 + len(p.at[over].text)
		over++
	}
	p.at = slices.Delete(p.at, 0, over)
}

// append appends the text.
func (p *places) append(dst []byte) []byte {
	if p.one && len(p.at) > 0 {
		return append(dst, p.at[0].text...)
	}
	dst = append(dst, '@')
	dst = strconv.AppendInt(dst, p.since, 10)
	if p.known != "" {
		dst = append(append(dst, ':'), p.known...)
	}
	for i := range p.at {
		dst = append(dst, ',')
		dst = append(dst, p.at[i].text...)
	}
	return dst
}

// list returns them as a subscription takes them.
func (p *places) list() []eventhub.Place {
	list := make([]eventhub.Place, len(p.at))
	for i := range p.at {
		list[i], _ = parsePlace(string(p.at[i].text)) // we wrote it
	}
	return list
}

// parsePlace reads the text of a spot.
func parsePlace(text string) (p eventhub.Place, ok bool) {
	topic, rest, _ := strings.Cut(text, ":")
	number, moment, timed := strings.Cut(rest, ":")
	offset, err := strconv.ParseUint(number, 10, 64)
	if err != nil || offset > eventhub.MaxOffset {
		return p, false
	}
	p = eventhub.Place{Topic: topic, Offset: offset}
	if timed {
		if p.TS, err = strconv.ParseInt(moment, 36, 64); err != nil || p.TS < 1 {
			return p, false
		}
	}
	return p, true
}

// lastEventID reads where a client that comes back was, nil where it is new. Every
// topic of it has to be one of the stream's.
func lastEventID(r *http.Request, patterns []eventhub.Pattern) (*places, error) {
	text := r.Header.Get("Last-Event-ID")
	if text == "" {
		return nil, nil
	}
	bad := func(format string, args ...any) (*places, error) {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "Last-Event-ID %.48q "+format, append([]any{text}, args...)...)
	}
	if len(text) > maxPlaceBytes {
		return bad("has %d bytes; at most %d are allowed", len(text), maxPlaceBytes)
	}
	p := &places{one: oneTopic(patterns)}
	rest := text
	if timed, ok := strings.CutPrefix(text, "@"); ok {
		var since string
		var err error
		since, rest, _ = strings.Cut(timed, ",")
		since, p.known, _ = strings.Cut(since, ":")
		if p.since, err = strconv.ParseInt(since, 10, 64); err != nil || p.since < 0 {
			return bad("has %.20q for a time in epoch milliseconds", since)
		}
	} else if !p.one {
		return bad("is not of a stream of several topics; these begin with @ and a time")
	}
	for entry := range strings.SplitSeq(rest, ",") {
		if rest == "" {
			break // a time alone
		}
		place, ok := parsePlace(entry)
		if !ok {
			return bad("has %.48q; a topic, a colon and an offset are expected", entry)
		}
		topic := place.Topic
		if !slices.ContainsFunc(patterns, func(q eventhub.Pattern) bool { return q.Match(topic) }) {
			return bad("is of topic %.48q, which this stream does not have", topic)
		}
		if slices.ContainsFunc(p.at, func(s spot) bool { return s.topic == topic }) {
			return bad("has topic %.48q twice", topic)
		}
		p.advance(topic, place.Offset, place.TS)
	}
	return p, nil
}

// oneTopic reports whether there is one topic, now and later.
func oneTopic(patterns []eventhub.Pattern) bool {
	return len(patterns) == 1 && !eventhub.IsPattern(patterns[0].String())
}
