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
)

// JournalForm is the form of the URL of a journal: NATS servers, and the stream on them. replicas is 3
// where it is missing, max_bytes bounds a stream that is created, and sync=always is the
// operator's word that all servers have sync_interval: always.
const JournalForm = "nats://[USER:PASSWORD@]HOST:PORT[,HOST:PORT…]/STREAM[?replicas=N&max_bytes=N&sync=always]"

// CheckJournalURL refuses what no journal has for a URL.
func CheckJournalURL(text string) error {
	_, err := journalOptions(text)
	return err
}

// lookJournal looks for the journal of a URL, and creates nothing.
func lookJournal(ctx context.Context, text string) (*looked, error) {
	o, err := journalOptions(text)
	if err != nil {
		return nil, err
	}
	j, err := jetstream.Look(ctx, o)
	if err != nil {
		return nil, err
	}
	return &looked{j, j.Exists(), j.Create}, nil
}

// journalOptions reads the URL. No error has the password.
func journalOptions(text string) (o jetstream.Options, err error) {
	u, err := url.Parse(text)
	if err != nil {
		return o, errors.New("it cannot be read as a URL; want " + JournalForm)
	}
	if u.Scheme != "nats" && u.Scheme != "tls" || u.Host == "" {
		return o, fmt.Errorf("its scheme is %q; want %s, with tls for nats where the servers speak TLS", u.Scheme, JournalForm)
	}
	o.Stream = strings.Trim(u.Path, "/")
	if o.Stream == "" {
		return o, errors.New("it names no stream; want " + JournalForm)
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
			return o, fmt.Errorf("%s=%s: %w; want %s", name, value, err, JournalForm)
		}
	}
	return o, nil
}

// JournalShown is the URL of a journal without its password.
func JournalShown(text string) string {
	u, err := url.Parse(text)
	if err != nil {
		return "(a URL that cannot be read)"
	}
	return u.Redacted()
}
