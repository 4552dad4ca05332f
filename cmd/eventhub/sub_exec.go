package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/output"
)

const (
	// exitDataErr is EX_DATAERR of sysexits.h: the input is wrong, and will be next time.
	exitDataErr = 65
	// What a shell says of a command that it cannot run.
	exitNotExecutable, exitNotFound = 126, 127

	maxParallel = 1000
	// outputWait is how long the output of a command that has ended is waited for: a
	// process that it left may have it open.
	outputWait = 2 * time.Second
)

// execution is what `eventhub sub --exec` does with each event: a command whose exit
// status is the verdict.
type execution struct {
	command  string
	parallel int
	terminal int // the exit status that makes a dead letter at once; 0: none

	group, url     string
	out            *output.Results
	stdout, stderr io.Writer
	environment    []string // of this process, without what is said of an event

	count  int                   // how many events there may be; 0: no bound
	begun  atomic.Int64          // of them
	stop   func()                // no other event is begun
	passed chan struct{}         // of ends
	fault  atomic.Pointer[error] // why no command can be run
}

// runExec is a member of the group until ctx ends, all that was wanted is done, or no
// command can be run. Commands that run then come to their end.
func (f *following) runExec(cmd *cobra.Command, c *client.Client, adm *client.Admin) error {
	e := &f.execution
	ctx, stop := context.WithCancel(cmd.Context())
	defer stop()
	until := newEnds()
	e.group, e.url, e.count, e.stop, e.passed = f.group, f.url, f.count, stop, until.passed
	e.stdout, e.stderr, e.environment = cmd.OutOrStdout(), cmd.ErrOrStderr(), outerEnvironment(os.Environ())
	e.out = results(cmd)
	e.out.OnHangup(stop)
	// The group has to exist before its cursor is asked for.
	sub, err := f.subscribe(ctx, c, declining{}, e.stderr)
	if err == nil {
		err = sub.Unsubscribe(ctx)
	}
	if err == nil && f.caughtUp {
		err = f.findHeads(ctx, adm, &until)
	}
	if err != nil {
		return err
	}
	var workers sync.WaitGroup
	failed := make(chan error, 1)
	if f.caughtUp {
		workers.Go(func() {
			if err := until.reached(ctx); ctx.Err() == nil {
				failed <- err
				stop()
			}
		})
	}
	opts := f.member()
	opts.Concurrency = e.parallel
	opts.OnGap, opts.OnEnded = gapTo(e.stderr), endedTo(e.stderr, f.group)
	err = c.Consume(ctx, opts, e.handle)
	stop()
	workers.Wait()
	if fault := e.fault.Load(); fault != nil {
		return *fault
	}
	select {
	case caughtUp := <-failed:
		return cmp.Or(err, caughtUp)
	default:
		return err
	}
}

// declining takes nothing of what it is given.
type declining struct{}

func (declining) Deliver([]eventhub.Delivery) int { return 0 }
func (declining) Ended(error)                     {}

// handle runs the command for one event, also if ctx ends meanwhile. It is an
// eventhub.Handler: the error of ctx gives the event back.
func (e *execution) handle(ctx context.Context, d eventhub.Delivery) error {
	if e.count > 0 {
		switch n := e.begun.Add(1); {
		case n > int64(e.count):
			<-ctx.Done()
			return ctx.Err()
		case n == int64(e.count):
			defer e.stop()
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	event, err := d.Event()
	if err != nil {
		return eventhub.Terminal(err)
	}
	defer ring(e.passed)
	err = e.run(&d, &event)
	var refused *refusal
	switch {
	case err == nil:
		return nil
	case e.out.HungUp(): // which commands that write fail of
		e.stop()
		return ctx.Err()
	case errors.As(err, &refused):
		return e.refuse(&d, refused)
	}
	err = fmt.Errorf("%w: --exec %s cannot be run; event %s, offset %d of %s, goes back to the group", err, strconv.Quote(e.command), d.ID(), d.Offset, d.Topic)
	e.fault.CompareAndSwap(nil, &err)
	e.stop()
	return ctx.Err()
}

// refuse reports that the command has refused its event, and returns the verdict.
func (e *execution) refuse(d *eventhub.Delivery, why *refusal) error {
	dead := why.status == e.terminal && e.terminal != 0
	what := "it comes again"
	if dead || d.Attempt >= d.MaxAttempts {
		what = "it is a dead letter now"
	}
	fmt.Fprintf(e.stderr, "eventhub: event %s, offset %d of %s, attempt %d of %d: %s; %s\n", d.ID(), d.Offset, d.Topic, d.Attempt, d.MaxAttempts, why, what)
	if dead {
		return eventhub.Terminal(why)
	}
	return why
}

// refusal is the end of a command that did not ack its event.
type refusal struct {
	status int // 0: a signal killed it
	text   string
}

func (r *refusal) Error() string { return r.text }

// run runs the command. A *refusal is about the event, any other error about the command.
func (e *execution) run(d *eventhub.Delivery, event *eventhub.Event) error {
	last := &tailLine{to: e.stderr}
	c := exec.Command("/bin/sh", "-c", e.command)
	c.Stdin = io.MultiReader(bytes.NewReader(event.Payload), strings.NewReader("\n"))
	c.Stdout, c.Stderr = e.stdout, last
	c.Env = append(slices.Clip(e.environment), e.describe(d, event)...)
	c.WaitDelay = outputWait
	err := commands.run(c)
	var exit *exec.ExitError
	switch {
	case err == nil, errors.Is(err, exec.ErrWaitDelay):
		return nil
	case !errors.As(err, &exit):
		return fmt.Errorf("run a command: %w", err)
	}
	text := "exit status " + strconv.Itoa(exit.ExitCode())
	status, _ := exit.Sys().(syscall.WaitStatus)
	if status.Signaled() {
		text = "killed by signal: " + status.Signal().String()
	}
	if line := last.text(); line != "" {
		text += ": " + line
	}
	switch exit.ExitCode() {
	case exitNotExecutable, exitNotFound:
		return errors.New(text)
	}
	return &refusal{max(exit.ExitCode(), 0), text}
}

// variables are what a command gets of its event, see describe.
var variables = []string{"TOPIC", "GROUP", "ID", "OFFSET", "KEY", "TS", "COMMITTED_TS", "SID", "TAGS", "CAUSED_BY", "HEADERS", "ATTEMPT", "MAX_ATTEMPTS", "REDRIVEN", "GAP_AFTER", "GAP_FIRST", "GAP_COMPACTED", "GAP_TOMBSTONES"}

const (
	variablePrefix = "EVENTHUB_"
	headerPrefix   = "HEADER_"
)

// outerEnvironment leaves out what an outer command got of its event.
func outerEnvironment(all []string) []string {
	return slices.DeleteFunc(all, func(pair string) bool {
		name, _, _ := strings.Cut(pair, "=")
		name, ok := strings.CutPrefix(name, variablePrefix)
		return ok && (slices.Contains(variables, name) || strings.HasPrefix(name, headerPrefix))
	})
}

// describe returns the variables of an event.
func (e *execution) describe(d *eventhub.Delivery, event *eventhub.Event) []string {
	headers := event.Headers
	if headers == nil {
		headers = map[string]string{}
	}
	object, _ := json.Marshal(headers) // strings alone
	values := map[string]string{
		"TOPIC": d.Topic, "GROUP": e.group, "ID": event.ID, "OFFSET": strconv.FormatUint(d.Offset, 10),
		"KEY": event.Key, "TS": strconv.FormatInt(event.TS, 10), "SID": event.SID,
		"COMMITTED_TS": strconv.FormatInt(event.CommitTime().UnixMilli(), 10),
		"TAGS":         strings.Join(event.Tags, ","), "CAUSED_BY": strings.Join(event.CausedBy, ","), "HEADERS": string(object),
		"ATTEMPT": strconv.Itoa(d.Attempt), "MAX_ATTEMPTS": strconv.Itoa(d.MaxAttempts), "REDRIVEN": strconv.Itoa(d.Redriven),
	}
	if d.Gap != nil {
		if d.Gap.Compacted > 0 {
			values["GAP_COMPACTED"], values["GAP_TOMBSTONES"] = strconv.FormatUint(d.Gap.Compacted, 10), strconv.FormatUint(d.Gap.Tombstones, 10)
		}
		values["GAP_AFTER"], values["GAP_FIRST"] = strconv.FormatUint(d.Gap.After, 10), strconv.FormatUint(d.Gap.First, 10)
	}
	for name, value := range headers {
		values[headerPrefix+variableName(name)] = value
	}
	pairs := []string{variablePrefix + "URL=" + e.url}
	for name, value := range values {
		// The environment of a process cannot hold the character 0.
		pairs = append(pairs, variablePrefix+name+"="+strings.ReplaceAll(value, "\x00", "\uFFFD"))
	}
	return pairs
}

// variableName writes the name of a header as that of a variable: x-tenant is X_TENANT.
func variableName(header string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, header)
}

// tailLine passes on what is written and keeps the last line of it that has text.
type tailLine struct {
	to       io.Writer
	kept, at []byte // the last whole line, and the one under way
}

// keptLine is how much of a line is kept; a reason has 1 KiB.
const keptLine = 1 << 10

// Write implements io.Writer.
func (l *tailLine) Write(p []byte) (int, error) {
	for rest := p; len(rest) > 0; {
		line, after, whole := bytes.Cut(rest, []byte("\n"))
		l.at = append(l.at, line[:min(len(line), max(keptLine-len(l.at), 0))]...)
		if whole && len(bytes.TrimSpace(l.at)) > 0 {
			l.kept = append(l.kept[:0], l.at...)
		}
		if whole {
			l.at = l.at[:0]
		}
		rest = after
	}
	return l.to.Write(p)
}

// text returns the line.
func (l *tailLine) text() string {
	line := l.kept
	if len(bytes.TrimSpace(l.at)) > 0 {
		line = l.at
	}
	return strings.ToValidUTF8(string(bytes.TrimSpace(line)), "\uFFFD")
}

// commands are the commands that run. Each has a process group of its own, so that Ctrl-C
// does not reach it; a second Ctrl-C ends them with this process.
var commands running

type running struct {
	mu    sync.Mutex
	pids  map[int]struct{}
	ended bool
}

// run runs a command to its end.
func (r *running) run(c *exec.Cmd) error {
	setGroup(c)
	r.mu.Lock()
	if r.ended {
		r.mu.Unlock()
		return errors.New("the process is ending")
	}
	err := c.Start()
	if err == nil {
		if r.pids == nil {
			r.pids = make(map[int]struct{})
		}
		r.pids[c.Process.Pid] = struct{}{}
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	err = c.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pids, c.Process.Pid)
	return err
}

// end ends all commands, and lets none begin.
func (r *running) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	for pid := range r.pids {
		endGroup(pid)
	}
}
