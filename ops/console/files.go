package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"io/fs"
	"net/http"
	"path"
	"strings"
	"time"
)

//go:embed static
var static embed.FS

// Policy is the Content-Security-Policy of the page: its own files, its own origin, and no text that
// becomes markup or code.
const Policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// kinds are the media types of the files, by the end of the name.
var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
	".svg": "image/svg+xml", ".txt": "text/plain; charset=utf-8",
}

// file is one thing that the page consists of.
type file struct {
	kind, etag string
	body       []byte
}

// files are all of them, by path below /console/.
var files = readFiles()

func readFiles() (all struct {
	by  map[string]file
	err error
}) {
	all.by = make(map[string]file)
	all.err = fs.WalkDir(static, "static", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		body, err := static.ReadFile(name)
		sum := sha256.Sum256(body)
		all.by[strings.TrimPrefix(name, "static/")] = file{kinds[path.Ext(name)], `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`, body}
		return err
	})
	all.by[""] = all.by["index.html"]
	return all
}

// files answers with a file of the page.
func (c *Console) files(w http.ResponseWriter, r *http.Request) {
	serve(w, r, strings.TrimPrefix(r.URL.Path, "/console/"))
}

// Index answers with the page itself, whatever the path.
func Index(w http.ResponseWriter, r *http.Request) { serve(w, r, "") }

func serve(w http.ResponseWriter, r *http.Request, name string) {
	h := w.Header()
	h.Set("Content-Security-Policy", Policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-cache") // the next version of the hub has another page
	f, known := files.by[name]
	switch {
	case !known:
		http.Error(w, "the console has no such file", http.StatusNotFound)
	case r.Method != http.MethodGet && r.Method != http.MethodHead:
		h.Set("Allow", "GET, HEAD")
		http.Error(w, "a file of the console can only be read", http.StatusMethodNotAllowed)
	default:
		h.Set("Content-Type", f.kind)
		h.Set("ETag", f.etag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
	}
}
