package limits

import (
	"fmt"
	"strconv"
	"sync/atomic"

	"go.yaml.in/yaml/v3"

	"eventhub"
	"eventhub/internal/naming"
	"eventhub/internal/topicconf"
	"eventhub/internal/yamlfile"
)

// maxTopicLimits bounds the entries for topics.
const maxTopicLimits = 1000

// settings are what a file says.
type settings struct {
	connection, principal limit
	topics                []*limit // of those that match a topic the first counts
	total, address, each  bound    // of connections; each: of each principal
}

// bound is how many connections there may be. The zero value is none.
type bound struct {
	kind string
	most int
	hits *atomic.Uint64
}

// check refuses one more where there are so many.
func (b *bound) check(open int, code eventhub.Code, whose string) error {
	if b.most == 0 || open < b.most {
		return nil
	}
	b.hits.Add(1)
	message := fmt.Sprintf("there are %d connections%s, and at most %d are allowed (limit %s)", open, whose, b.most, b.kind)
	return &eventhub.Error{Code: code, Message: message, RetryAfter: retryConnection}
}

// bounds returns those that there are.
func (s *settings) bounds() (list []*bound) {
	for _, b := range []*bound{&s.total, &s.address, &s.each} {
		if b.most > 0 {
			list = append(list, b)
		}
	}
	return list
}

// limit is one bucket's. The zero value is none.
type limit struct {
	kind      string
	pattern   eventhub.Pattern // of topics
	perSecond float64
	burst     int
	hits      *atomic.Uint64
}

func (l *limit) isOff() bool { return l.perSecond == 0 }

// letsAll reports whether nothing but connections is limited.
func (s *settings) letsAll() bool { return s.principal.isOff() && len(s.topics) == 0 }

// all returns the limits that there are.
func (s *settings) all() (list []*limit) {
	for _, l := range append([]*limit{&s.connection, &s.principal}, s.topics...) {
		if !l.isOff() {
			list = append(list, l)
		}
	}
	return list
}

// topic returns the limit of a topic, or nil.
func (s *settings) topic(name string) *limit {
	for _, l := range s.topics {
		if l.pattern.Match(name) {
			return l
		}
	}
	return nil
}

// reader reads a file of limits.
type reader struct {
	yamlfile.File
	settings settings
	patterns []eventhub.Pattern // as settings.topics
}

// Check returns what is wrong with the content of a file, one line for each fault.
func Check(path string, content []byte) error {
	_, err := parse(path, content)
	return err
}

// parse reads the content of a file. An empty one has no limits.
func parse(path string, content []byte) (*settings, error) {
	r := &reader{File: yamlfile.File{Path: path}}
	if top := r.Document(content); top != nil {
		r.Members(top, "lines publish: and connections: with limits below them", func(name, value *yaml.Node) {
			switch name.Value {
			case "publish":
				r.Members(value, "limits of connection, principal and topics", r.publish)
			case "connections":
				r.Members(value, "total, address and principal", r.connections)
			default:
				r.Fail(name, "unknown name %q%s; publish and connections are allowed", name.Value, naming.DidYouMean(name.Value, []string{"publish", "connections"}))
			}
		})
	}
	return &r.settings, r.Err()
}

func (r *reader) publish(name, value *yaml.Node) {
	s := &r.settings
	switch name.Value {
	case "connection":
		s.connection = r.limit(value, ofConnection)
	case "principal":
		s.principal = r.limit(value, ofPrincipal)
	case "topics":
		r.Members(value, "limits by the name of a topic or a pattern", r.topic)
		return
	default:
		names := []string{"connection", "principal", "topics"}
		r.Fail(name, "unknown name %q%s; connection, principal and topics are allowed", name.Value, naming.DidYouMean(name.Value, names))
		return
	}
	if c, p := &s.connection, &s.principal; !c.isOff() && !p.isOff() && (c.perSecond > p.perSecond || c.burst > p.burst) {
		r.Fail(name, "a connection may have more than its principal, which has all its connections together: connection is %v with burst %d, principal %v with burst %d",
			c.perSecond, c.burst, p.perSecond, p.burst)
	}
}

func (r *reader) connections(name, value *yaml.Node) {
	s := &r.settings
	var b *bound
	switch name.Value {
	case "total":
		b = &s.total
	case "address":
		b = &s.address
	case "principal":
		b = &s.each
	default:
		names := []string{"total", "address", "principal"}
		r.Fail(name, "unknown name %q%s; total, address and principal are allowed", name.Value, naming.DidYouMean(name.Value, names))
		return
	}
	n, err := strconv.Atoi(value.Value)
	if err != nil || n < 1 || n > 1e9 || value.Kind != yaml.ScalarNode {
		r.Fail(value, "%s: %q is not a number from 1 to 1000000000", name.Value, value.Value)
		return
	}
	*b = bound{kind: ofConnections + name.Value, most: n}
	for _, part := range []*bound{&s.address, &s.each} {
		if (b == part || b == &s.total) && s.total.most > 0 && part.most > s.total.most {
			r.Fail(name, "%s is %d, and total, which is for all connections together, %d", part.kind, part.most, s.total.most)
		}
	}
}

func (r *reader) topic(name, value *yaml.Node) {
	p, err := eventhub.ParsePattern(name.Value)
	at := 0
	if err == nil {
		at, err = topicconf.Place(r.patterns, p)
	}
	switch {
	case err != nil:
		r.Fail(name, "%s", eventhub.AsError(err).Message)
		return
	case len(r.patterns) == maxTopicLimits:
		r.Fail(name, "more than %d entries", maxTopicLimits)
		return
	}
	l := r.limit(value, ofTopic)
	l.pattern = p
	r.patterns = append(r.patterns[:at], append([]eventhub.Pattern{p}, r.patterns[at:]...)...)
	r.settings.topics = append(r.settings.topics[:at], append([]*limit{&l}, r.settings.topics[at:]...)...)
}

// limit reads per_second and burst. Without a burst it is what comes in a second.
func (r *reader) limit(node *yaml.Node, kind string) limit {
	l := limit{kind: kind}
	known := r.Faults()
	r.Members(node, "per_second, and burst if it is another number", func(name, value *yaml.Node) {
		switch name.Value {
		case "per_second":
			n, err := strconv.ParseFloat(value.Value, 64)
			if err != nil || !(n > 0 && n <= 1e9) || value.Kind != yaml.ScalarNode {
				r.Fail(value, "per_second: %q is not a number above 0, up to 1000000000", value.Value)
			}
			l.perSecond = n
		case "burst":
			n, err := strconv.Atoi(value.Value)
			if err != nil || n < 1 || n > 1e9 || value.Kind != yaml.ScalarNode {
				r.Fail(value, "burst: %q is not a number from 1 to 1000000000", value.Value)
			}
			l.burst = n
		default:
			r.Fail(name, "unknown name %q%s; per_second and burst are allowed", name.Value, naming.DidYouMean(name.Value, []string{"per_second", "burst"}))
		}
	})
	if r.Faults() > known {
		return limit{kind: kind}
	}
	if l.isOff() {
		r.Fail(node, "there is no per_second")
	}
	if l.burst == 0 {
		l.burst = max(1, int(l.perSecond))
	}
	return l
}
