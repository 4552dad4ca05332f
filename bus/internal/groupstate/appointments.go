package groupstate

// timed is an appointment of one entry: the end of a lease or the time of a
// retry. It is void where the state and the time of the entry are others by now.
type timed struct {
	at     int64
	offset uint64
}

// appointments is a binary heap by (at, offset). Void ones stay inside until
// they come first or are the larger part.
type appointments []timed

func (a appointments) less(i, j int) bool {
	return a[i].at < a[j].at || a[i].at == a[j].at && a[i].offset < a[j].offset
}

func (a *appointments) push(t timed) {
	*a = append(*a, t)
	h := *a
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h.less(i, up) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

func (a *appointments) pop() {
	h := *a
	last := len(h) - 1
	h[0] = h[last]
	*a = h[:last]
	a.sink(0)
}

func (a appointments) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(a); child++ {
			if a.less(child, least) {
				least = child
			}
		}
		if least == i {
			return
		}
		a[i], a[least] = a[least], a[i]
		i = least
	}
}

// compact removes what is void once that is most of the heap, so that a heap of
// n live appointments never holds more than about 2n.
func (a *appointments) compact(live int, valid func(timed) bool) {
	if len(*a) < 1024 || len(*a) < 2*live {
		return
	}
	kept := (*a)[:0]
	for _, t := range *a {
		if valid(t) {
			kept = append(kept, t)
		}
	}
	*a = kept
	for i := len(kept)/2 - 1; i >= 0; i-- {
		a.sink(i)
	}
}
