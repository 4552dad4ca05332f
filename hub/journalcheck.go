package hub

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"eventhub/hub/internal/member"
	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
	"eventhub/store/journal/mongo/projection"
)

// JournalCheck is what is to be said of the journal before a hub is started.
type JournalCheck struct {
	Summary  string   // one line
	Warnings []string // what is allowed, and will bite
	Errors   []error  // what keeps a hub from starting
}

// CheckJournal looks at the journal of a configuration that is valid, and changes nothing. The error says that its
// servers are not reached, or do not answer.
func CheckJournal(ctx context.Context, cfg Config) (*JournalCheck, error) {
	cfg = cfg.WithDefaults()
	if inMongo(cfg.Journal) {
		return checkMongo(ctx, &cfg)
	}
	o, err := journalOptions(cfg.Journal)
	if err != nil {
		return nil, err
	}
	r, err := jetstream.Inspect(ctx, o)
	if err != nil && !errors.Is(err, journal.ErrAway) {
		return &JournalCheck{Errors: []error{fmt.Errorf("journal: %w", err)}}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
	}
	c := &JournalCheck{}
	for _, err := range r.Wrong {
		c.Errors = append(c.Errors, fmt.Errorf("journal: %w%s", err, cfg.from("journal")))
	}
	if !r.Exists && r.Cluster == "" && r.Replicas > 1 {
		c.Errors = append(c.Errors, fmt.Errorf("journal: the stream is to have %d replicas, and the server is in no cluster; replicas=1 is for one server%s", r.Replicas, cfg.from("journal")))
	}
	if r.Answer > cfg.Lease/member.Looks {
		c.Errors = append(c.Errors, fmt.Errorf("lease is %s, and the journal takes %s for an answer; no standby could take over: at least %s is needed%s",
			cfg.Lease, r.Answer.Round(time.Millisecond), max(member.LeastLease, (2*member.Looks*r.Answer).Round(time.Second)), cfg.from("lease")))
	}
	c.Warnings = journalWarnings(&o, r)
	is := fmt.Sprintf("entries %d to %d, %d bytes", r.First, r.Last, r.Used)
	if !r.Exists {
		is = "which the first hub creates"
	}
	sync := "replicated: where all servers lose power at once, what came within their sync_interval (2 minutes by default) may be lost"
	if o.Synced {
		sync = "sync, by your word that all servers have sync_interval: always, which a hub cannot see"
	}
	c.Summary = fmt.Sprintf("journal %s: NATS %s, stream %s of %d replicas, %s; an answer takes %s; durability %s",
		JournalShown(cfg.Journal), r.Server, o.Stream, r.Replicas, is, r.Answer.Round(10*time.Microsecond), sync)
	return c, nil
}

// checkMongo is CheckJournal of a journal in MongoDB.
func checkMongo(ctx context.Context, cfg *Config) (*JournalCheck, error) {
	j, err := lookMongo(ctx, cfg.Journal)
	switch {
	case errors.Is(err, journal.ErrAway):
		return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
	case err != nil:
		return &JournalCheck{Errors: []error{fmt.Errorf("journal: %w%s", err, cfg.from("journal"))}}, nil
	}
	defer j.Close()
	if in := cfg.projects(j.Journal); in != nil {
		switch err := in.Check(ctx, projection.Check); {
		case errors.Is(err, journal.ErrAway):
			return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
		case err != nil:
			return &JournalCheck{Errors: []error{fmt.Errorf("journal: %w%s", err, cfg.from("journal", "project"))}}, nil
		}
	}
	is := "which the first hub creates"
	c := &JournalCheck{Warnings: []string{"a journal in MongoDB has no limit of its own: hubs trim it, and nothing else keeps it from filling the disks of the servers"}}
	if j.exists {
		limits, err := j.Limits(ctx)
		if err != nil {
			return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
		}
		last, err := j.Last(ctx)
		if err != nil {
			return nil, fmt.Errorf("journal %s: %w", JournalShown(cfg.Journal), err)
		}
		is = fmt.Sprintf("entries %d to %d, %d bytes; durability %s", limits.First, last, limits.Used, limits.Durability)
	}
	c.Summary = fmt.Sprintf("journal %s: MongoDB, %s", JournalShown(cfg.Journal), is)
	return c, nil
}

func journalWarnings(o *jetstream.Options, r *jetstream.Report) (all []string) {
	if r.Replicas == 1 {
		all = append(all, "the journal has one replica: it does not survive the loss of its server")
	}
	if r.Replicas == 2 {
		all = append(all, "the journal has two replicas: without either of them it takes nothing; better three")
	}
	if !r.Exists && r.Cluster != "" && r.Servers < r.Replicas {
		all = append(all, fmt.Sprintf("the journal is to have %d replicas, and only %d servers are known", r.Replicas, r.Servers))
	}
	if len(r.Away) > 0 {
		all = append(all, "replicas of the journal are away or behind: "+strings.Join(r.Away, ", "))
	}
	if r.Most == 0 && r.Exists {
		all = append(all, "the journal has no max_bytes: nothing keeps it from filling the disks of the servers")
	}
	if r.Exists && o.MostBytes > 0 && uint64(o.MostBytes) != r.Most {
		all = append(all, fmt.Sprintf("max_bytes=%d counts for a stream that is created; the one that is there has %d (0: no limit)", o.MostBytes, r.Most))
	}
	if r.Most > 0 && r.Used >= r.Most/100*member.NearlyFull {
		all = append(all, fmt.Sprintf("the journal has %d of %d bytes", r.Used, r.Most))
	}
	return all
}
