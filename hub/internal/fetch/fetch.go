// Package fetch gets a copy of the store of one member of a cluster for another one: a backup over HTTP,
// which is whole on the disk or not there. What begins it, and what becomes of the copy, is the
// hub's affair.
//
// # Invariants
//
//   - The directory has its name when all of it is there and agrees with the checksums, as a backup does.
//   - What an attempt before has left is removed, so attempts that break off do not fill the disk.
package fetch

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"

	"eventhub"
	"eventhub/client"
	"eventhub/internal/backup"
)

// Name is that of the copy, below a directory of its own.
const Name = "copy"

// As is who fetches: the token that the hub is presented, empty for none, and what is trusted where it has
// TLS, nil for what the system trusts.
type As struct {
	Token string
	Trust *tls.Config
}

// Copy fetches a copy of the store of the hub at the first of the URLs that answers into a new directory below
// dir, and returns its path. received counts bytes meanwhile. Whatever dir has is removed before.
func Copy(ctx context.Context, urls []string, as As, dir string, received *atomic.Int64) (path string, err error) {
	if err := os.RemoveAll(dir); err != nil {
		return "", fmt.Errorf("remove what an attempt before has left: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("make a directory for the copy: %w", err)
	}
	var options []client.Option
	if as.Token != "" {
		options = append(options, client.WithToken(as.Token))
	}
	if as.Trust != nil {
		options = append(options, client.WithTLS(as.Trust))
	}
	if len(urls) > 1 {
		options = append(options, client.WithURLs(urls[1:]...))
	}
	from, err := client.NewAdmin(urls[0], options...)
	if err != nil {
		return "", err
	}
	defer from.Close()
	path = filepath.Join(dir, Name)
	received.Store(0)
	_, err = backup.Receive(path, func(w io.Writer) error {
		_, err := from.BackupTo(ctx, io.MultiWriter(w, counter{received}))
		return err
	})
	if err != nil {
		return "", err
	}
	return path, nil
}

// IsFinal reports whether another attempt would fail like this one: the hub has refused the token, or can
// make no copy.
func IsFinal(err error) bool {
	if errors.Is(err, client.ErrUnreachable) {
		return false
	}
	e, ok := errors.AsType[*eventhub.Error](err)
	return ok && !e.Code.Passing()
}

type counter struct{ n *atomic.Int64 }

func (c counter) Write(p []byte) (int, error) {
	c.n.Add(int64(len(p)))
	return len(p), nil
}
