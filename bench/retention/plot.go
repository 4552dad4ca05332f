package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"time"
)

// The picture has two panels with one axis of time: the size of the directory, and the p99 of each
// window.
const (
	width, height = 900, 620
	left, right   = 80, width - 20
	sizeTop       = 50
	sizeBottom    = 330
	delayTop      = 390
	delayBottom   = 570
)

// The colours of the runs, which people who see few colours distinguish.
var colours = []string{"#d55e00", "#0072b2"}

type picture struct {
	bytes.Buffer
	seconds float64 // at the right
}

func (p *picture) x(seconds float64) float64 {
	return left + (right-left)*min(max(seconds, 0), p.seconds)/p.seconds
}

func (p *picture) text(x, y float64, anchor, s string) {
	fmt.Fprintf(p, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
}

// line draws a line through points, dashed or not.
func (p *picture) line(colour, dash string, points [][2]float64) {
	fmt.Fprintf(p, `<polyline fill="none" stroke="%s" stroke-width="1.5" stroke-dasharray="%s" points="`, colour, dash)
	for _, at := range points {
		fmt.Fprintf(p, "%.1f,%.1f ", at[0], at[1])
	}
	p.WriteString(`"/>` + "\n")
}

// panel is one of the two: a linear scale from 0 to most.
type panel struct {
	*picture
	top, bottom, most float64
}

func (p panel) y(v float64) float64 { return p.bottom - (p.bottom-p.top)*min(v, p.most)/p.most }

// frame draws the scales and the title.
func (p panel) frame(title string) {
	p.text(left, p.top-12, "start", title)
	step := math.Pow(10, math.Floor(math.Log10(p.most)))
	for p.most/step < 4 {
		step /= 2
	}
	for v := 0.0; v <= p.most; v += step {
		fmt.Fprintf(p, `<path d="M%d %.1fH%d" stroke="#ddd"/>`+"\n", left, p.y(v), right)
		p.text(left-8, p.y(v)+4, "end", fmt.Sprintf("%g", v))
	}
	for s := 0.0; s <= p.seconds; s += 60 {
		fmt.Fprintf(p, `<path d="M%.1f %.1fV%.1f" stroke="#eee"/>`+"\n", p.x(s), p.top, p.bottom)
		p.text(p.x(s), p.bottom+16, "middle", (time.Duration(s) * time.Second).String())
	}
}

// draw returns the picture of all runs. The scale of sizes is that of the run with retention, which
// is the last.
func draw(o *options, runs []*trial) []byte {
	bounded := runs[len(runs)-1]
	largest, _ := bounded.largest(0, 1<<62)
	cap := float64(o.bounds.Bytes)
	slowest := 0.0
	for _, t := range runs {
		for _, w := range t.windows(o) {
			slowest = max(slowest, w.Latency.At(99))
		}
	}
	p := &picture{seconds: (o.load.Duration + o.after).Seconds()}
	fmt.Fprintf(p, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(p, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	sizes := panel{p, sizeTop, sizeBottom, max(largest, 1.5*cap) * 1.1 / mib}
	sizes.frame("the directory, MiB (dashed: its logs)")
	delays := panel{p, delayTop, delayBottom, max(slowest, 1) * 1.1}
	delays.frame("p99 of each window, ms")
	if cap > 0 {
		for _, v := range []float64{cap, 1.5 * cap} {
			p.line("#009e73", "6 4", [][2]float64{{left, sizes.y(v / mib)}, {right, sizes.y(v / mib)}})
		}
		p.text(right, sizes.y(1.5*cap/mib)-5, "end", "1.5 × the cap")
		p.text(right, sizes.y(cap/mib)-5, "end", "the cap")
	}
	for i, t := range runs {
		colour := colours[(i+len(colours)-len(runs))%len(colours)]
		fmt.Fprintf(p, `<rect x="%d" y="%d" width="12" height="12" fill="%s"/>`+"\n", left+250+160*i, 8, colour)
		p.text(float64(left+267+160*i), 18, "start", t.name)
		var all, logs, p99 [][2]float64
		for _, s := range t.sizes {
			all = append(all, [2]float64{p.x(s.at), sizes.y(s.all / mib)})
			logs = append(logs, [2]float64{p.x(s.at), sizes.y(s.logs / mib)})
		}
		for _, w := range t.windows(o) {
			p99 = append(p99, [2]float64{p.x(w.End), delays.y(w.Latency.At(99))})
		}
		p.line(colour, "", all)
		if t == bounded {
			p.line(colour, "3 3", logs)
		}
		p.line(colour, "", p99)
	}
	p.text(left, height-12, "start", fmt.Sprintf("%.0f events/s of %d B, ids: %t, keys: %d", o.load.Rate, o.load.Payload, o.load.IDs, o.load.Keys))
	p.WriteString("</svg>\n")
	return p.Bytes()
}
