package hub

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"eventhub/store/journal/jetstream"
	mongojournal "eventhub/store/journal/mongo"
)

// JournalForm is the form of the URL of a journal: NATS servers and the stream on them, or a replica set of
// MongoDB and the database on it. replicas is 3 where it is missing, max_bytes bounds a stream that is
// created, and sync=always is the operator's word that all servers have sync_interval: always.
const JournalForm = natsForm + " or " + mongoForm

const (
	natsForm  = "nats://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/STREAM[?replicas=N&max_bytes=N&sync=always]"
	mongoForm = "mongodb://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/[DATABASE][?replicaSet=NAME…]"
)

// inMongo reports whether a URL is of a journal in MongoDB.
func inMongo(text string) bool {
	return strings.HasPrefix(text, "mongodb://") || strings.HasPrefix(text, "mongodb+srv://")
}

// CheckJournalURL refuses what no journal has for a URL.
func CheckJournalURL(text string) error {
	if inMongo(text) {
		_, err := mongojournal.ParseURL(text)
		if err != nil {
			return fmt.Errorf("%w; want %s", err, mongoForm)
		}
		return nil
	}
	_, err := journalOptions(text)
	return err
}

// lookJournal looks for the journal of a URL, and creates nothing.
func lookJournal(ctx context.Context, text string) (*looked, error) {
	if inMongo(text) {
		return lookMongo(ctx, text)
	}
	o, err := journalOptions(text)
	if err != nil {
		return nil, err
	}
	j, err := jetstream.Look(ctx, o)
	if err != nil {
		return nil, err
	}
	return &looked{j, j.Exists(), j.Create, j.Create}, nil
}

func lookMongo(ctx context.Context, text string) (*looked, error) {
	o, err := mongojournal.ParseURL(text)
	if err != nil {
		return nil, err
	}
	j, err := mongojournal.Look(ctx, o)
	if err != nil {
		return nil, err
	}
	return &looked{j, j.Exists(), j.Create, j.CheckRights}, nil
}

// journalOptions reads the URL of a stream. No error has the password.
func journalOptions(text string) (o jetstream.Options, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return o, errors.New("it cannot be read as a URL; want " + JournalForm)
	}
	if u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "" {
		return o, fmt.Errorf("its scheme is %q; want %s, with tls for nats where the servers speak TLS, or %s", u.Scheme, natsForm, mongoForm)
	}
	o.Stream = strings.Trim(u.Path, "/")
	if o.Stream == "" {
		return o, errors.New("it names no stream; want " + natsForm)
	}
	var servers []string
	for host := range strings.SplitSeq(u.Host, ",") {
		servers = append(servers, u.Scheme+"://"+host)
	}
	o.URL = strings.Join(servers, ",")
	if u.User != nil {
		password, _ := u.User.Password()
		o.Connect = append(o.Connect, nats.UserInfo(u.User.Username(), password))
	}
	for name, values := range u.Query() {
		value := values[len(values)-1]
		switch name {
		case "replicas":
			o.Replicas, err = strconv.Atoi(value)
		case "max_bytes":
			o.MostBytes, err = strconv.ParseInt(value, 10, 64)
		case "sync":
			if o.Synced = value == "always"; !o.Synced {
				err = errors.New("always is allowed")
			}
		default:
			err = errors.New("there is no such option")
		}
		if err != nil {
			return o, fmt.Errorf("%s=%s: %w; want %s", name, value, err, natsForm)
		}
	}
	return o, nil
}

// JournalShown is the URL of a journal without its password, and without the options of MongoDB, some of
// which are secrets.
func JournalShown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	if inMongo(text) && u.RawQuery != "" {
		u.RawQuery = ""
		return u.Redacted() + "?…"
	}
	return u.Redacted()
}
