package ops

import (
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"

	"eventhub"
)

// levels are the names that the log's level is set by.
var levels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// maxLevelBody is more than any level and white space around it.
const maxLevelBody = 64

// errEncoded is in the chain of the error of a body that is encoded, which is answered 415.
var errEncoded = errors.New("the body is encoded")

// sameSite refuses what a browser sends for a page of another site or port. It
// is stricter than the origins that may look: a page on this machine that has
// nothing to do with the hub may not change it.
var sameSite = http.NewCrossOriginProtection()

func (o *Ops) showLevel(w http.ResponseWriter, _ *http.Request, _ Access) error {
	writeText(w, http.StatusOK, levelName(o.cfg.Level.Level())+"\n")
	return nil
}

// setLevel takes the level that the body names, for as long as the process
// lives.
func (o *Ops) setLevel(w http.ResponseWriter, r *http.Request, access Access) error {
	if err := sameSite.Check(r); err != nil {
		return eventhub.Wrap(eventhub.CodeForbidden, err, "pages of other sites may not change the hub's log level")
	}
	if coding := strings.Join(r.Header.Values("Content-Encoding"), ","); coding != "" && !strings.EqualFold(strings.TrimSpace(coding), "identity") {
		w.Header().Set("Accept-Encoding", "identity") // RFC 7694
		return eventhub.Wrap(eventhub.CodeBadRequest, errEncoded, "Content-Encoding %.40q is not accepted here; send the body as it is", coding)
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxLevelBody))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		return eventhub.Errorf(eventhub.CodeTooLarge, "the body has more than %d bytes; it is one of debug, info, warn, error", tooLarge.Limit)
	case err != nil:
		return eventhub.Wrap(eventhub.CodeBadRequest, err, "the body could not be read")
	}
	name := strings.ToLower(strings.TrimSpace(string(body)))
	to, ok := levels[name]
	if !ok {
		return eventhub.Errorf(eventhub.CodeBadRequest, "level %q is unknown; debug, info, warn and error are known", name)
	}
	from := o.cfg.Level.Level()
	// The change is reported while the more talkative of the two levels holds.
	report := func() {
		o.cfg.Logger.Warn("log level changed", "from", levelName(from), "to", name, "remote", r.RemoteAddr)
	}
	if to > from {
		report()
	}
	o.cfg.Level.Set(to)
	if access.LevelSet != nil {
		access.LevelSet()
	}
	if to < from {
		report()
	}
	return o.showLevel(w, r, access)
}

func levelName(l slog.Level) string { return strings.ToLower(l.String()) }
