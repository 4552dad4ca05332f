package jetstream

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// Report says how a journal is, as far as its user can see it. What the servers do with their disks, such as
// sync_interval, is not to be seen.
type Report struct {
	Server      string   // the version of the server that is connected
	Cluster     string   // the name of its cluster; empty where it is alone
	Servers     int      // how many servers are known, by the URL and by what it says
	Exists      bool     // the stream is there
	Replicas    int      // that it has, or would have
	Away        []string // the servers of its replicas that are away, or behind
	First, Last uint64
	Used, Most  uint64 // bytes; Most is 0 where there is no limit
	// Answer is how long the leader of the stream takes to say where it ends, the median of some, or where
	// there is none a server for a ping.
	Answer time.Duration
	Wrong  []error // all that keeps it from being a journal: *ConfigError, *RightsError
}

// answers is how many times the leader is asked how long it takes.
const answers = 5

// Inspect returns how a journal is, and changes nothing. The error has journal.ErrAway in its chain where the
// servers are not reached.
func Inspect(ctx context.Context, o Options) (*Report, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	j := newJournal(o)
	defer j.Close()
	if err := j.dial(); err != nil {
		return nil, away(err)
	}
	r := &Report{Server: j.conn.ConnectedServerVersion(), Cluster: j.conn.ConnectedClusterName(), Servers: len(j.conn.Servers()), Replicas: o.Replicas}
	for _, want := range []jetstream.StreamConfig{j.entriesConfig(), j.membersConfig()} {
		if err := j.inspect(ctx, &want, r); err != nil {
			return nil, away(err)
		}
	}
	r.Wrong = append(r.Wrong, j.Probe(ctx)...)
	return r, nil
}

// inspect looks at one of the streams.
func (j *Journal) inspect(ctx context.Context, want *jetstream.StreamConfig, r *Report) error {
	ctx, cancel := context.WithTimeout(ctx, openWithin/3)
	defer cancel()
	stream, err := j.js.Stream(ctx, want.Name)
	if err != nil {
		err = j.denied.explain(err)
	}
	isEntries := want.Name == j.options.Stream
	rights, denied := errors.AsType[*RightsError](err)
	switch {
	case denied:
		r.Wrong = append(r.Wrong, rights)
		return nil
	case errors.Is(err, jetstream.ErrStreamNotFound):
		if isEntries {
			r.Answer, err = j.conn.RTT()
			return err
		}
		return nil
	case err != nil:
		return fmt.Errorf("ask for the stream %s: %w", want.Name, err)
	}
	info := stream.CachedInfo()
	r.Wrong = append(r.Wrong, compare(&info.Config, want)...)
	if !isEntries {
		return nil
	}
	r.Exists, r.Replicas = true, info.Config.Replicas
	r.First, r.Last, r.Used = info.State.FirstSeq, info.State.LastSeq, info.State.Bytes
	if info.Config.MaxBytes > 0 {
		r.Most = uint64(info.Config.MaxBytes)
	}
	if info.Cluster != nil {
		for _, p := range info.Cluster.Replicas {
			if p.Offline || !p.Current {
				r.Away = append(r.Away, p.Name)
			}
		}
	}
	var took []time.Duration
	for range answers {
		began := time.Now()
		if _, err := stream.Info(ctx); err != nil {
			return fmt.Errorf("ask for the stream %s: %w", want.Name, err)
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	r.Answer = took[answers/2]
	return nil
}
