package pebble
import ("testing";"os";"strconv";"context";"eventhub/store";pdb "github.com/cockroachdb/pebble/v2";"fmt")
func ev(n string, d int) int { if v, err := strconv.Atoi(os.Getenv(n)); err == nil { return v }; return d }
func BenchmarkZZ(b *testing.B) {
	o := onDisk(b, b.TempDir())
	o.tune = func(p *pdb.Options) {
		p.MemTableSize = uint64(ev("MEM", 64)) << 20
		p.CacheSize = int64(ev("CACHE", 64)) << 20
		p.L0CompactionThreshold = ev("L0", 4)
		p.TargetFileSizes[0] = int64(ev("FILE", 8)) << 20
		p.LBaseMaxBytes = int64(ev("LBASE", 256)) << 20
		p.BytesPerSync = ev("BPS", 512) << 10
		for i := range p.Levels { p.Levels[i].BlockSize = ev("BLOCK", 16) << 10 }
		if os.Getenv("COMP") == "none" { p.ApplyCompressionSettings(func() pdb.DBCompressionSettings { return pdb.DBCompressionNone }) }
		n := ev("CONC", 1)
		p.CompactionConcurrencyRange = func() (int, int) { return 1, n }
	}
	s := mustOpen(b, o)
	defer mustClose(b, s)
	u, renew := newBenchUnit(1000)
	for b.Loop() {
		b.StopTimer()
		renew()
		if os.Getenv("GIVEN") != "" { for i := range u.Appends { u.Appends[i].FreshID = false } }
		b.StartTimer()
		if err := s.Commit(context.Background(), []*store.Unit{u}, true); err != nil { b.Fatal(err) }
	}
	b.ReportMetric(float64(1000*b.N)/b.Elapsed().Seconds(), "events/s")
	m := s.db.Metrics()
	fmt.Fprintln(os.Stderr, "WA", func() float64 { x := m.Total(); return x.WriteAmp() }(), "stalls", "L0 sub", m.Levels[0].Sublevels, "compactions", m.Compact.Count, "wal", m.WAL.BytesWritten>>20, "MiB; flushes", m.Flush.Count)
}
