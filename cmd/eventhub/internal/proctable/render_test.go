package proctable

import (
	"flag"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"eventhub/internal/demo/process"
)

var rewrite = flag.Bool("update", false, "write the golden files")

var now = time.UnixMilli(1723140000000)

// proc is a process of host box, heard of seconds ago.
func proc(name string, pid int, cpu, mem float64, seconds int, status process.Status) process.State {
	return process.State{
		ProcessID: "box:" + name, Host: "box", Name: name, PID: pid, CPU: cpu, Mem: mem,
		LastSeenTS: now.Add(-time.Duration(seconds) * time.Second).UnixMilli(), Status: status,
	}
}

func some() []process.State {
	return []process.State{
		proc("idle", 9, 0, 3.25, 0, process.Alive),
		proc("gone", 4194304, 80.5, 1024, 47, process.Stale),
		proc("stt", 42, 12.34, 200.5, 1, process.Alive),
		proc("busy", 7, 399.96, 12345.6, 0, process.Alive),
		proc("idle-big", 8, 0, 99, 0, process.Alive),
	}
}

func odd() []process.State {
	s := []process.State{
		proc("\x1b[2J\x1b]0;pwned\x07", 1, 9, 1, 0, process.Alive),
		proc("two\r\nlines\tand\x00nul", 2, 8, 1, 0, process.Alive),
		proc("日本語プロセス", 3, 7, 1, 0, process.Alive),
		proc("e\u0301te\u0301", 4, 6, 1, 0, process.Alive),
		proc("\u202edesrever\u2069 \u200bhidden\u00a0space", 5, 5, 1, 0, process.Alive),
		proc("bad\xff\xfeutf8", 6, 4, 1, 0, process.Alive),
		proc("🚀 rocket", 7, 3, 1, 0, process.Alive),
		proc(strings.Repeat("長い名前", 30), 8, 2, 1, 0, process.Alive),
		proc("figures", -9223372036854775808, 1e300, -1e300, -3600, process.Alive),
		proc("old", 9, 0, 1, 7200, process.Alive),
	}
	s[3].Host = "hôte.example.org"
	return s
}

func TestRender(t *testing.T) {
	hubs := []string{"ws://127.0.0.1:8090/ws", "http://127.0.0.1:8082"}
	for _, tt := range []struct {
		name          string
		v             view
		width, height int
	}{
		{"usual", view{hubs: hubs, seen: 1234, rate: 20, states: some()}, 100, 24},
		{"color", view{hubs: hubs, seen: 1234, rate: 20, states: some(), color: true}, 100, 24},
		{"empty", view{hubs: hubs}, 80, 24},
		{"short", view{hubs: hubs, seen: 5, states: some()}, 80, 4},
		{"narrow", view{hubs: hubs, seen: 5, states: some(), color: true}, 40, 24},
		{"odd", view{hubs: []string{"evil\x1b[31m"}, seen: 5, states: odd()}, 80, 24},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := render(tt.v, tt.width, tt.height, now) + "\n"
			file := filepath.Join("testdata", tt.name+".golden")
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// TestRenderFitsAnyTerminal: whatever the names, the frame stays within width
// and height, and the only control characters are ours.
func TestRenderFitsAnyTerminal(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	text := func() string {
		var s []byte
		for range rng.IntN(60) {
			switch rng.IntN(5) {
			case 0:
				s = append(s, byte(rng.IntN(256)))
			case 1:
				s = utf8.AppendRune(s, rune(rng.IntN(unicode.MaxRune)))
			case 2:
				s = utf8.AppendRune(s, rune(0x3000+rng.IntN(0x3000)))
			default:
				s = append(s, byte(' '+rng.IntN(95)))
			}
		}
		return string(s)
	}
	for range 2000 {
		v := view{color: rng.IntN(2) == 0, hubs: []string{text()}}
		for range rng.IntN(8) {
			s := proc(text(), rng.Int(), rng.NormFloat64()*1e6, rng.ExpFloat64(), rng.IntN(100), process.Alive)
			s.Host = text()
			if rng.IntN(2) == 0 {
				s.Status = process.Stale
			}
			v.states = append(v.states, s)
		}
		width, height := rng.IntN(120), rng.IntN(10)
		frame := render(v, width, height, now)
		frame = strings.NewReplacer(bold, "", dim, "", plain, "").Replace(frame)
		lines := strings.Split(frame, "\n")
		if len(lines) > max(height, 1) {
			t.Fatalf("%d lines in a terminal of %d", len(lines), height)
		}
		for _, line := range lines {
			if columns(line) > width {
				t.Fatalf("%d columns in a terminal of %d: %q", columns(line), width, line)
			}
			if line != printable(line) {
				t.Fatalf("unprintable: %q", line)
			}
		}
	}
}

func TestColumns(t *testing.T) {
	for s, want := range map[string]int{"": 0, "abc": 3, "é": 1, "e\u0301": 1, "日本": 4, "한국": 4, "ｱ": 1, "Ａ": 2, "🚀": 2, "…": 1, "Ж": 1} {
		if got := columns(s); got != want {
			t.Errorf("columns(%q) = %d, want %d", s, got, want)
		}
	}
}

func TestAge(t *testing.T) {
	for seconds, want := range map[int]string{-5: "0s", 0: "0s", 99: "99s", 100: "1m", 5999: "99m", 6000: "1h", 360000: "100h"} {
		if got := age(now.Add(-time.Duration(seconds)*time.Second).UnixMilli(), now); got != want {
			t.Errorf("age of %d s: %s, want %s", seconds, got, want)
		}
	}
}
