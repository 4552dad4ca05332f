package rest

import (
	"archive/tar"
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/transfer"
)

// backupPrefix begins the names of the directories that hold a copy of the store while
// it is sent.
const backupPrefix = "eventhub-backup-"

// clearScratch removes the copies that a process left when it was killed while it
// sent them. Nobody else uses the directory.
func clearScratch(dir string) error {
	left, err := filepath.Glob(filepath.Join(dir, backupPrefix+"*"))
	for _, name := range left {
		if err == nil {
			err = os.RemoveAll(name)
		}
	}
	return err
}

// backup sends a tar of the store as it is at a moment during the request: a copy,
// made first, in a directory that is gone when the answer is. One is made at a time,
// and few are kept, for each needs room: a client that is slow to take one does not
// keep others from theirs. The trailer has the checksum of the tar.
//
// It reads everything there is, so it needs admin of all topics; who is not lets those who are
// wait for no place.
func (a *API) backup(w http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if _, err := parameters(r); err != nil {
		return reply{}, err
	}
	if access.Backuper == nil {
		return reply{}, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub keeps nothing that can be copied")
	}
	if err := access.rights().Backup(); err != nil {
		return reply{}, err
	}
	if r.Method == http.MethodHead {
		w.Header().Set("Content-Type", transfer.Tar)
		return reply{status: http.StatusOK}, nil
	}
	select {
	case a.copies <- struct{}{}:
		defer func() { <-a.copies }()
	default:
		return reply{}, &eventhub.Error{Code: eventhub.CodeOverloaded,
			Message: fmt.Sprintf("%d backups are being sent; no more are made", maxCopies), RetryAfter: 10 * time.Second}
	}
	ctx, cancel := a.untilStop(r.Context())
	defer cancel()
	d := newDownload(ctx, w, transfer.Tar, 0, transfer.ChecksumTrailer)
	sum := transfer.NewSum()
	err := roomless(a.copyStore(ctx, access.Backuper, io.MultiWriter(sum, d)))
	if err == nil {
		err = d.end(sum, -1)
	}
	if err != nil {
		return a.fail(r, d, err)
	}
	return reply{status: http.StatusOK, sent: true}, nil
}

// roomless says of an error that a full disk has caused that it did. What was written of the copy is gone by then.
func roomless(err error) error {
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return &eventhub.Error{Code: eventhub.CodeOverloaded, Message: "the hub's disk has no room for the copy that a backup needs", RetryAfter: time.Minute, Err: err}
}

// copyStore writes the tar of a copy, and takes the copy away.
func (a *API) copyStore(ctx context.Context, from admin.Backuper, w io.Writer) error {
	if a.cfg.Scratch != "" {
		if err := os.MkdirAll(a.cfg.Scratch, 0o700); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(a.cfg.Scratch, backupPrefix)
	if err != nil {
		return err
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			a.cfg.Logger.Warn("a copy of the store can not be removed", "dir", dir, "error", err)
		}
	}()
	copied := filepath.Join(dir, "store") // which must not exist
	if !a.copying.TryLock() {
		return &eventhub.Error{Code: eventhub.CodeOverloaded, Message: "another backup is being made", RetryAfter: 10 * time.Second}
	}
	err = from.Backup(ctx, copied)
	a.copying.Unlock()
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(w, exportBuffer)
	if err := writeTar(ctx, buffered, copied); err != nil {
		return err
	}
	return buffered.Flush()
}

// writeTar writes what is in dir, in the order of names. Who reads the tar needs to
// know contents alone, so names, sizes and bytes are all there is in it.
func writeTar(ctx context.Context, w io.Writer, dir string) error {
	tw := tar.NewWriter(w)
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		header := &tar.Header{Name: filepath.ToSlash(name), Mode: 0o600, Format: tar.FormatPAX}
		switch {
		case entry.IsDir():
			header.Typeflag, header.Mode = tar.TypeDir, 0o700
			header.Name += "/"
			return tw.WriteHeader(header)
		case entry.Type().IsRegular():
			return writeTarFile(ctx, tw, header, path)
		}
		return nil // a store has nothing else
	})
	if err != nil {
		return err
	}
	return tw.Close()
}

func writeTarFile(ctx context.Context, tw *tar.Writer, header *tar.Header, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close() // it was only read
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := tw.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(tw, &interruptible{ctx, f})
	return err
}

// interruptible ends a read when the context does.
type interruptible struct {
	ctx context.Context
	r   io.Reader
}

func (i *interruptible) Read(p []byte) (int, error) {
	if err := i.ctx.Err(); err != nil {
		return 0, err
	}
	return i.r.Read(p)
}
