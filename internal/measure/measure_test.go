package measure

import (
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestObserve(t *testing.T) {
	h := NewHistogram([]float64{1, 2, 5})
	for _, v := range []float64{0, 1, 1.5, 2, 3, 5, 5.1, 1000} {
		h.Observe(v)
	}
	if want := map[float64]uint64{1: 2, 2: 4, 5: 6}; !maps.Equal(h.Buckets(), want) {
		t.Errorf("buckets are %v; want %v", h.Buckets(), want)
	}
	if h.Count() != 8 || h.Sum() != 1017.6 {
		t.Errorf("count %d, sum %v; want 8, 1017.6", h.Count(), h.Sum())
	}
}

// TestCopiesAreIndependent: a snapshot does not change when the original does.
func TestCopiesAreIndependent(t *testing.T) {
	h := NewHistogram(Milliseconds)
	h.Observe(3)
	snapshot := h
	h.Observe(3)
	if snapshot.Count() != 1 || snapshot.Sum() != 3 || snapshot.Buckets()[5] != 1 {
		t.Errorf("the copy has count %d, sum %v, buckets %v", snapshot.Count(), snapshot.Sum(), snapshot.Buckets())
	}
}

// TestAdd: the sum of two histograms is the histogram of all values.
func TestAdd(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, bounds := range [][]float64{Milliseconds, Seconds, Counts} {
		a, b, all := NewHistogram(bounds), NewHistogram(bounds), NewHistogram(bounds)
		top := bounds[len(bounds)-1] * 2
		for range 1000 {
			v := float64(random.Uint64N(uint64(top)*1024+1)) / 1024 // sums of these are exact
			all.Observe(v)
			if random.IntN(2) == 0 {
				a.Observe(v)
			} else {
				b.Observe(v)
			}
		}
		before := b.Count()
		a.Add(&b)
		if a.Count() != all.Count() || a.Sum() != all.Sum() || !maps.Equal(a.Buckets(), all.Buckets()) {
			t.Errorf("the sum has count %d, sum %v, buckets %v; want %d, %v, %v", a.Count(), a.Sum(), a.Buckets(), all.Count(), all.Sum(), all.Buckets())
		}
		if b.Count() != before {
			t.Errorf("what was added has count %d; it had %d", b.Count(), before)
		}
		a.Add(new(Histogram))
		if a.Count() != all.Count() {
			t.Errorf("adding nothing made count %d; want %d", a.Count(), all.Count())
		}
	}
}

func TestBoundsAreChecked(t *testing.T) {
	for name, bounds := range map[string][]float64{
		"too many": make([]float64, maxBuckets+1),
		"falling":  {2, 1},
		"equal":    {1, 1},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: NewHistogram took %v", name, bounds)
				}
			}()
			NewHistogram(bounds)
		}()
	}
	if h := NewHistogram(make([]float64, 0)); h.Count() != 0 || len(h.Buckets()) != 0 {
		t.Errorf("a histogram without bounds is %+v", h)
	}
}

// TestAddOfEveryField: Add adds each field of a group, except those of its present state.
func TestAddOfEveryField(t *testing.T) {
	state := []string{"Topic", "Group", "Lag", "Waiting", "Held", "Members", "Paused", "InFlight", "OpenLetters", "Redriven"}
	counted := NewGroup("t", "g")
	counted.Paused, counted.InFlight["ws"] = true, 1
	for field, v := range reflect.ValueOf(&counted).Elem().Fields() {
		switch v.Kind() {
		case reflect.Uint64:
			v.SetUint(7)
		case reflect.Int:
			v.SetInt(7)
		case reflect.Struct:
			v.Addr().Interface().(*Histogram).Observe(7)
		}
		if v.IsZero() {
			t.Fatalf("this test does not know how to set %s, a %s", field.Name, v.Type())
		}
	}
	sum := NewGroup("", "")
	before := NewGroup("", "")
	sum.Add(&counted)
	for field, v := range reflect.ValueOf(sum).Fields() {
		from := counted
		if slices.Contains(state, field.Name) {
			from = before
		}
		if want := reflect.ValueOf(from).FieldByName(field.Name); !reflect.DeepEqual(v.Interface(), want.Interface()) {
			t.Errorf("%s is %v after Add; want %v", field.Name, v, want)
		}
	}
}
