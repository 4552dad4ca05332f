package outboxurl

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub/outbox"
	mongooutbox "eventhub/outbox/mongo"
)

const (
	// mongoSelects is how long a command waits for a server where the URL does not say it.
	mongoSelects = 5 * time.Second
	// mongoCloses bounds the good-bye to the servers.
	mongoCloses = 5 * time.Second
)

var mongoBackend = backend{
	schemes:  []string{"mongodb", "mongodb+srv"},
	prefixes: []string{"mongodb://", "mongodb+srv://"},
	check: func(text string) error {
		_, err := mongoDatabase(text)
		return err
	},
	open:   openMongo,
	schema: mongoSchema,
	shown:  shownURL,
	away: func(err error) bool {
		var dial *net.OpError
		var name *net.DNSError
		return mongo.IsNetworkError(err) || mongo.IsTimeout(err) || errors.As(err, &dial) || errors.As(err, &name)
	},
}

// mongoDatabase returns the name of the database, which is the path of the URL. The driver says
// the rest when the URL is opened: with mongodb+srv it asks name servers.
func mongoDatabase(text string) (string, error) {
	_, rest, ok := strings.Cut(text, "://")
	rest, _, _ = strings.Cut(rest, "?")
	hosts, database, _ := strings.Cut(rest[strings.LastIndex(rest, "@")+1:], "/")
	switch {
	case !ok || hosts == "":
		return "", bad("%q is not like mongodb://HOST/DATABASE", shownURL(text))
	case database == "":
		return "", bad("%q names no database; write mongodb://HOST/DATABASE", shownURL(text))
	case strings.ContainsAny(database, `/\. "$*<>:|`):
		return "", bad("%q: the name of the database has a character that none can have", shownURL(text))
	}
	return database, nil
}

func openMongo(_ context.Context, text string, _ bool) (outbox.Store, func() error, error) {
	database, err := mongoDatabase(text)
	if err != nil {
		return nil, nil, err
	}
	o := options.Client().SetAppName("eventhub").SetServerSelectionTimeout(mongoSelects).ApplyURI(text)
	var client *mongo.Client
	if err = o.Validate(); err == nil {
		client, err = mongo.Connect(o)
	}
	if err != nil {
		_, rest, _ := strings.Cut(text, "://")
		user := rest[:max(strings.LastIndex(rest, "@"), 0)]
		_, password, _ := strings.Cut(user, ":")
		return nil, nil, bad("%q: %s", shownURL(text), without(err.Error(), text, user, password))
	}
	store := mongooutbox.New(client.Database(database), "")
	return store, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), mongoCloses)
		defer cancel()
		return errors.Join(store.Close(ctx), client.Disconnect(ctx))
	}, nil
}

// mongoSchema returns what Migrate does, as statements for mongosh.
func mongoSchema(string) (string, error) {
	var b strings.Builder
	fmt.Fprintf(&b, "// An outbox of eventhub, version %d, for MongoDB: run it with mongosh in the database of the service.\n", mongooutbox.Version)
	index := func(collection string, m mongo.IndexModel) error {
		keys, err := bson.MarshalExtJSON(m.Keys, false, false)
		if err != nil {
			return err
		}
		var o options.IndexOptions
		if m.Options != nil {
			for _, set := range m.Options.List() {
				if err := set(&o); err != nil {
					return err
				}
			}
		}
		more := ""
		if o.Sparse != nil && *o.Sparse {
			more = `, {"sparse":true}`
		}
		fmt.Fprintf(&b, "db.%s.createIndex(%s%s);\n", collection, keys, more)
		return nil
	}
	for _, m := range mongooutbox.Indexes() {
		if err := index(mongooutbox.DefaultCollection, m); err != nil {
			return "", err
		}
	}
	if err := index(mongooutbox.LockCollection, mongo.IndexModel{Keys: bson.D{{Key: "outbox", Value: 1}, {Key: "n", Value: -1}}}); err != nil {
		return "", err
	}
	fmt.Fprintf(&b, "db.%s.updateOne({\"_id\":%q}, {\"$setOnInsert\":{\"version\":%d}}, {\"upsert\":true});\n",
		mongooutbox.VersionCollection, mongooutbox.DefaultCollection, mongooutbox.Version)
	return b.String(), nil
}
