package outboxurl

import (
	"context"
	"errors"
	"net/url"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"eventhub/outbox"
	"eventhub/outbox/postgres"
)

var postgresBackend = backend{
	schemes:  []string{"postgres", "postgresql"},
	prefixes: []string{"postgres://"},
	check: func(text string) error {
		_, err := poolConfig(text)
		return err
	},
	open:   openPostgres,
	schema: func(string) (string, error) { return postgres.Schema, nil },
	shown:  shownURL,
	away: func(err error) bool {
		var connect *pgconn.ConnectError
		var refused *pgconn.PgError // such as a wrong password: somebody is there
		return errors.As(err, &connect) && !errors.As(err, &refused)
	},
}

// poolConfig reads a URL as libpq does, with what PGHOST, PGPASSWORD and a password file add.
func poolConfig(text string) (*pgxpool.Config, error) {
	u, err := url.Parse(text)
	if err != nil {
		return nil, bad("%q: %s", shownURL(text), reason(err))
	}
	if _, after, ok := strings.Cut(text, ":"); !ok || !strings.HasPrefix(after, "//") {
		return nil, bad("%q is not like postgres://USER@HOST/DATABASE", shownURL(text))
	}
	if strings.Contains(u.Path, "@") { // a / before it began the path
		return nil, bad("%q has an @ in the name of the database; @ and / in a password are written as %%40 and %%2F", shownURL(text))
	}
	c, err := pgxpool.ParseConfig(text)
	if err != nil {
		query := u.Query()
		return nil, bad("%q: %s", shownURL(text), without(lastPart(err.Error(), "`: "), secretOf(u), query.Get("password"), query.Get("sslpassword")))
	}
	if c.ConnConfig.RuntimeParams["application_name"] == "" {
		c.ConnConfig.RuntimeParams["application_name"] = "eventhub"
	}
	return c, nil
}

func openPostgres(ctx context.Context, text string, _ bool) (outbox.Store, func() error, error) {
	c, err := poolConfig(text)
	if err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	store := postgres.New(pool)
	return store, func() error {
		store.Close()
		pool.Close()
		return nil
	}, nil
}
