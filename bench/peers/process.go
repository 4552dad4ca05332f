package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	startWithin = 30 * time.Second
	stopWithin  = 60 * time.Second
)

// process is a server's.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	exit  error

	mu  sync.Mutex
	log bytes.Buffer
}

// launch starts a program in a directory and waits until one of its lines of
// output, standard or error, has what ready finds there.
func launch(ctx context.Context, dir string, ready func(line string) bool, program string, args ...string) (*process, error) {
	p := &process{cmd: exec.Command(program, args...), ended: make(chan struct{})}
	p.cmd.Dir = dir
	r, w := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = w, w
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	up := make(chan struct{})
	go func() {
		p.exit = p.cmd.Wait()
		w.Close()
		close(p.ended)
	}()
	go p.follow(r, ready, up)
	late := time.NewTimer(startWithin)
	defer late.Stop()
	var err error
	select {
	case <-up:
		return p, nil
	case <-p.ended:
		err = errors.New("ended at once")
	case <-late.C:
		err = fmt.Errorf("does not serve within %s", startWithin)
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	_ = p.cmd.Process.Kill() // it may have ended already
	<-p.ended
	return nil, fmt.Errorf("%s: %w:\n%s", program, err, p.logged())
}

// follow reads the output until the process has ended.
func (p *process) follow(r io.Reader, ready func(string) bool, up chan<- struct{}) {
	lines := bufio.NewScanner(r)
	serving := false
	for lines.Scan() {
		p.mu.Lock()
		if p.log.Len() < 16<<10 {
			fmt.Fprintln(&p.log, lines.Text())
		}
		p.mu.Unlock()
		if !serving && ready(lines.Text()) {
			serving = true
			close(up)
		}
	}
	_, _ = io.Copy(io.Discard, r) // what the scanner would not take must not block the server
}

func (p *process) logged() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// stop sends SIGTERM, waits, and returns the processor time that was used, and how many bytes the
// process has had the system write before that; 0 where the system does not say.
func (p *process) stop() (used time.Duration, written float64, err error) {
	written, _ = strconv.ParseFloat(field(fmt.Sprintf("/proc/%d/io", p.cmd.Process.Pid), "write_bytes"), 64)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended already
	late := time.NewTimer(stopWithin)
	defer late.Stop()
	select {
	case <-p.ended:
	case <-late.C:
		_ = p.cmd.Process.Kill() // the exit says why
		<-p.ended
	}
	state := p.cmd.ProcessState
	if p.exit != nil {
		return 0, 0, fmt.Errorf("%s stopped, not in order: %w:\n%s", p.cmd.Path, p.exit, p.logged())
	}
	return state.UserTime() + state.SystemTime(), written, nil
}

// usedCPU is the processor time of this process, which is the load.
func usedCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err) // it fails for wrong arguments alone
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// load measures what it costs this process to do work.
func load(work func() (*outcome, error)) (*outcome, error) {
	began, before := time.Now(), usedCPU()
	o, err := work()
	if err != nil {
		return nil, err
	}
	o.Wall, o.LoadCPU = time.Since(began).Seconds(), (usedCPU() - before).Seconds()
	return o, nil
}

// measured floods for the warm-up, and then for the time that is measured; holds checks how many events
// the server has after both.
func measured(l publishLoad, recorders []*recorder, flood func(time.Duration) (int64, time.Duration, error), holds func(n int64) error) (*outcome, error) {
	warm, _, err := flood(l.warmup)
	if err != nil {
		return nil, err
	}
	for _, r := range recorders {
		r.reset()
	}
	return load(func() (*outcome, error) {
		n, took, err := flood(l.duration)
		if err != nil {
			return nil, err
		}
		o := &outcome{Value: float64(n) / took.Seconds(), Count: n, Seconds: took.Seconds(), Quantiles: summarize(recorders...), Events: warm + n}
		return o, holds(warm + n)
	})
}
