package cluster

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "eventhub/client"
	"eventhub/store/journal"
)

// tokenOfAll is what hubs and clients of TestBootstrap present.
const tokenOfAll = "token-of-the-cluster"

// byHand is the command that a hub names which cannot fetch a copy.
var byHand = regexp.MustCompile(`move (\S+) away and make it by hand: eventhub (backup --url \S+ \S+)`)

// TestBootstrap: under load a hub comes back with an empty directory; with one that is behind what the journal
// still has; and with such a one and a token that is refused: then it says so with a command, which makes
// a copy. Each follows from there; in the end all copies are the same.
func TestBootstrap(t *testing.T) {
	t.Parallel()
	r := &rig{t: t, flags: []string{"--auth-token", tokenOfAll}, options: []sdk.Option{sdk.WithToken(tokenOfAll)}}
	r.start(time.Second, 0)
	j := r.journal()
	defer j.Close()
	fetched, made := 0, 0
	for range *rounds {
		for _, come := range []func(*hub){r.comeEmpty, func(h *hub) { r.comeBehind(h, j) }, func(h *hub) { r.comeRefused(h, j) }} {
			h := r.hubs[(slices.Index(r.hubs, r.lead)+1+r.random.IntN(2))%len(r.hubs)]
			r.round(4*time.Second, func() {
				h.end(syscall.SIGKILL)
				r.trim(j) // from here on a journal alone makes no member
				if err := os.Remove(filepath.Join(h.dir, "log")); err != nil {
					t.Fatal(err)
				}
				come(h)
				h.await(isStandby)
				h.await(" 0 entries behind")
			})
			if strings.Contains(h.logged(), "this hub follows from the copy that it fetched") {
				fetched++
			} else {
				made++
			}
		}
	}
	r.finish()
	if fetched != 2**rounds || made != *rounds {
		t.Errorf("%d copies were fetched, and %d made by hand, in %d rounds", fetched, made, *rounds)
	}
}

// trim trims the journal up to what the hubs that run have.
func (r *rig) trim(j journal.Journal) (upTo uint64) {
	r.t.Helper()
	for _, h := range r.hubs {
		select {
		case <-h.ended:
			continue
		default:
		}
		if place := h.place(); upTo == 0 || place < upTo {
			upTo = place
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	if err := j.Trim(ctx, upTo); err != nil {
		r.t.Fatal(err)
	}
	return upTo
}

func (r *rig) comeEmpty(h *hub) {
	r.t.Helper()
	if err := os.RemoveAll(filepath.Join(h.dir, "store")); err != nil {
		r.t.Fatal(err)
	}
	h.start()
}

// comeBehind starts a hub when the next entry for it is gone.
func (r *rig) comeBehind(h *hub, j journal.Journal) {
	r.t.Helper()
	_, at := h.copied()
	for end := time.Now().Add(within); r.trim(j) <= at.Seq; r.load.progress(5) {
		if time.Now().After(end) {
			r.t.Fatalf("the journal cannot be trimmed beyond %d", at.Seq)
		}
	}
	h.start()
}

// comeRefused is comeBehind with a token that is refused, and does what the hub says then.
func (r *rig) comeRefused(h *hub, j journal.Journal) {
	r.t.Helper()
	flags := h.flags
	h.flags = append(slices.Clone(flags), "--member-token", "wrong")
	r.comeBehind(h, j)
	h.flags = flags
	select {
	case <-h.ended:
	case <-time.After(within):
		r.t.Fatalf("a hub whose token is refused goes on:\n%s", h.logged())
	}
	said := h.logged()
	found := byHand.FindStringSubmatch(said)
	const refused = 4 // the exit code of whoever has no right
	if found == nil || h.cmd.ProcessState.ExitCode() != refused || strings.Count(said, "eventhub: ") != 1 {
		r.t.Fatalf("a hub whose token is refused ends with code %d, and says\n%s", h.cmd.ProcessState.ExitCode(), said)
	}
	if err := os.Rename(found[1], filepath.Join(r.t.TempDir(), "away")); err != nil {
		r.t.Fatal(err)
	}
	// On a busy machine the hub that leads loses its lease for a moment, and its connections with it: whoever
	// types the command types it again.
	for end := time.Now().Add(within); ; r.load.progress(5) {
		cmd := exec.Command(h.program, strings.Fields(found[2])...)
		cmd.Env = append(os.Environ(), "EVENTHUB_TOKEN="+tokenOfAll)
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		if cmd.ProcessState.ExitCode() == refused || time.Now().After(end) {
			r.t.Fatalf("%s: %v\n%s", found[2], err, out)
		}
	}
	h.start()
}
