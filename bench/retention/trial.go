package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"eventhub/admin"
	"eventhub/bench"
	"eventhub/client"
)

// trial is one hub under the load.
type trial struct {
	name   string
	bounds admin.Retention

	result *bench.Result
	sizes  []size
	kept   *admin.TopicUsage // at the end, where something bounds it
}

// windows are those that are whole: the last one may have lasted for a moment.
func (t *trial) windows(o *options) (whole []bench.Window) {
	began := 0.0
	for _, w := range t.result.Windows {
		if w.Latency != nil && w.End-began >= o.load.Window.Seconds()/2 {
			whole = append(whole, w)
		}
		began = w.End
	}
	return whole
}

// size is what the directory takes of the disk, in bytes.
type size struct {
	at                float64 // seconds since the measurement began; the warm-up is before 0
	all, logs, tables float64
}

// lookEvery is the time between two looks at the directory.
const lookEvery = time.Second

func (t *trial) run(ctx context.Context, o *options) (err error) {
	hub, err := bench.Serve(ctx, o.binary, o.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, hub.Stop()) }()
	adm, err := client.NewAdmin(hub.URL)
	if err != nil {
		return err
	}
	defer adm.Close()
	isBounded := t.bounds != (admin.Retention{})
	if isBounded {
		if _, err := adm.SetTopic(ctx, o.load.Topic, admin.TopicSettings{Retention: t.bounds}, nil); err != nil {
			return err
		}
	}
	looking, stop := context.WithCancel(ctx)
	var looks sync.WaitGroup
	looks.Go(func() { t.look(looking, hub.Store(), time.Now().Add(o.load.Warmup)) })
	t.result, err = bench.Publish(ctx, &bench.Target{URL: hub.URL, Seed: 1}, o.load)
	if err == nil && isBounded {
		var info admin.TopicInfo
		info, err = adm.Topic(ctx, o.load.Topic)
		t.kept = info.Kept
	}
	if err == nil {
		err = pause(ctx, o.after)
	}
	stop()
	looks.Wait()
	return err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// look notes the size of a directory until ctx ends.
func (t *trial) look(ctx context.Context, dir string, began time.Time) {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		s := measure(dir)
		s.at = time.Since(began).Seconds()
		t.sizes = append(t.sizes, s)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// measure adds up the blocks of all files, as du does. A file may go while it looks.
func measure(dir string) (s size) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		info, err := os.Lstat(path)
		if err != nil {
			return nil
		}
		bytes := float64(info.Size())
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			bytes = float64(stat.Blocks) * 512
		}
		s.all += bytes
		switch filepath.Ext(path) {
		case ".log":
			s.logs += bytes
		case ".sst", ".blob":
			s.tables += bytes
		}
		return nil
	})
	return s
}
