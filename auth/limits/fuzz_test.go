package limits

import (
	"testing"
	"time"
)

// FuzzFile reads what may be no file of limits: by what passes, publishes and connections are
// counted without a fault.
func FuzzFile(f *testing.F) {
	for _, s := range []string{
		"publish:\n  connection: {events_per_second: 5, burst: 10}\n  topics:\n    orders.**: {events_per_second: 0.5}\nconnections: {total: 5, address: 2, principal: 1}\n",
		"connections: {total: -1}", "publish: {principal: {events_per_second: .inf}}", "publish: {principal: {events_per_second: 1e308, burst: 1}}", "publish: &a {connection: *a}", "\xff",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		l := New()
		if l.Take("f.yaml", content) != nil {
			return
		}
		if place, err := l.Admit("192.0.2.1:5"); err == nil {
			_ = place.Become("p") // which may be refused
			place.Leave()
		}
		if m := l.Meter(); m != nil {
			_ = m.Take(1, time.UnixMilli(1))
			_ = m.Take(1, time.UnixMilli(0)) // a clock that went back
		}
		l.Measure()
		if l.open != 0 || len(l.from) != 0 || len(l.of) != 0 {
			t.Errorf("%d connections are left", l.open)
		}
	})
}
