package rest

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/internal/bubble"
	"eventhub/internal/transfer"
)

// withScratch is an API whose copies are made in a directory of the test's own.
func withScratch(t *testing.T, p *past) (dir string, api *API, h http.Handler) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "scratch")
	api, err := New(Config{Scratch: dir,
		Authenticate: func(context.Context, string, bool) (Access, error) { return p.access(), nil }})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	api.Register(mux)
	return dir, api, mux
}

func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	list, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	for _, e := range list {
		names = append(names, e.Name())
	}
	return names
}

// TestBackup: the answer is a tar of the copy, the trailer its checksum, and of the
// copy nothing is left.
func TestBackup(t *testing.T) {
	p := &past{files: map[string]string{"CURRENT": "x\n", "000001.sst": strings.Repeat("y", 1<<20), "sub/empty": ""}}
	dir, _, h := withScratch(t, p)
	s := httptest.NewServer(h)
	defer s.Close()
	for range 2 {
		answer, body, err := fetch(t, "GET", s.URL+"/v1/backup", nil)
		if err != nil || answer.StatusCode != 200 || answer.Header.Get("Content-Type") != transfer.Tar {
			t.Fatalf("%d %v, %v", answer.StatusCode, answer.Header, err)
		}
		if sum := answer.Trailer.Get(transfer.ChecksumTrailer); sum != sumOf(string(body)) {
			t.Errorf("checksum %q; want %q", sum, sumOf(string(body)))
		}
		got := make(map[string]string)
		for r := tar.NewReader(strings.NewReader(string(body))); ; {
			header, err := r.Next()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			content, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			if header.Typeflag == tar.TypeReg {
				got[header.Name] = string(content)
			}
		}
		if diff := cmp.Diff(p.files, got); diff != "" {
			t.Error(diff)
		}
		if !strings.HasPrefix(p.copied, dir) {
			t.Errorf("the copy was in %s", p.copied)
		}
		if left := entries(t, dir); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	}
	p.copied = ""
	if status, body, header := request(h, "HEAD", "/v1/backup", ""); status != 200 || body != "" || header.Get("Content-Type") != transfer.Tar || p.copied != "" {
		t.Errorf("HEAD: %d %q %v, and a copy in %q", status, body, header, p.copied)
	}
}

// TestBackupFails: before the first byte as any request does, and it leaves nothing.
func TestBackupFails(t *testing.T) {
	p := &past{keep: eventhub.Errorf(eventhub.CodeUnsupportedOp, "memory has no copies")}
	dir, _, h := withScratch(t, p)
	status, answer, _ := request(h, "GET", "/v1/backup", "")
	if status != 501 || !strings.Contains(answer, "memory has no copies") || len(entries(t, dir)) != 0 {
		t.Errorf("answered %d %s, left %v", status, answer, entries(t, dir))
	}
}

// TestBackupOnAFullDisk: the answer says what is missing, and that it may come.
func TestBackupOnAFullDisk(t *testing.T) {
	full := &fs.PathError{Op: "write", Path: "/secret/000004.sst", Err: syscall.ENOSPC}
	p := &past{keep: eventhub.Wrap(eventhub.CodeInternal, full, "The store failed to write a backup.")}
	dir, _, h := withScratch(t, p)
	status, answer, header := request(h, "GET", "/v1/backup", "")
	if status != 503 || !strings.Contains(answer, "has no room for the copy") || strings.Contains(answer, "secret") || header.Get("Retry-After") != "60" || len(entries(t, dir)) != 0 {
		t.Errorf("answered %d %s %v, left %v", status, answer, header, entries(t, dir))
	}
}

// TestBackupsToSlowClients: a client that is slow to take a backup does not keep others
// from theirs; there are only so many copies, and that of a client that goes away goes
// too.
func TestBackupsToSlowClients(t *testing.T) {
	scratch := t.TempDir()
	t.Setenv("TMPDIR", scratch)
	bubble.Test(t, func(t *testing.T) {
		p := &past{files: map[string]string{"a": strings.Repeat("y", 8<<20)}}
		_, client := servePipes(t, p.access())
		ctx, leave := context.WithCancel(t.Context())
		ask := func() *http.Response {
			r, err := http.NewRequestWithContext(ctx, "GET", "http://hub/v1/backup", nil)
			if err != nil {
				t.Fatal(err)
			}
			answer, err := client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			return answer
		}
		var slow []*http.Response
		for range maxCopies {
			answer := ask()
			if answer.StatusCode != 200 {
				t.Fatalf("next to %d slow clients: %s", len(slow), answer.Status)
			}
			slow = append(slow, answer)
		}
		more := ask()
		more.Body.Close()
		if more.StatusCode != 503 || more.Header.Get("Retry-After") != "10" {
			t.Errorf("next to %d: %d %v", maxCopies, more.StatusCode, more.Header)
		}
		if len(entries(t, scratch)) != maxCopies {
			t.Errorf("in scratch: %v", entries(t, scratch))
		}
		leave()
		for _, answer := range slow {
			if _, err := io.Copy(io.Discard, answer.Body); err == nil {
				t.Error("one came whole")
			}
			answer.Body.Close()
		}
		synctest.Wait()
		if left := entries(t, scratch); len(left) != 0 {
			t.Errorf("left: %v", left)
		}
	})
}

// TestBackupOneAtATime: while a copy is made no other is.
func TestBackupOneAtATime(t *testing.T) {
	p := &past{files: map[string]string{"a": "x"}}
	_, api, h := withScratch(t, p)
	api.copying.Lock()
	if status, answer, header := request(h, "GET", "/v1/backup", ""); status != 503 || header.Get("Retry-After") != "10" || !strings.Contains(answer, "another backup") {
		t.Errorf("answered %d %s", status, answer)
	}
	api.copying.Unlock()
	if status, answer, _ := request(h, "GET", "/v1/backup", ""); status != 200 {
		t.Errorf("and then %d %s", status, answer)
	}
}

// TestBackupLeftovers: what a killed process left is taken away by the next, and
// nothing else.
func TestBackupLeftovers(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{backupPrefix + "123", "mine"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "store"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	_, err := New(Config{Scratch: dir, Authenticate: func(context.Context, string, bool) (Access, error) { return Access{}, nil }})
	if left := entries(t, dir); err != nil || len(left) != 1 || left[0] != "mine" {
		t.Errorf("left: %v, %v", left, err)
	}
}
