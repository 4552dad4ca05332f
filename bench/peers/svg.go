package main

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The colours of the systems, in their order; people who see few colours distinguish them.
var colours = []string{"#0072b2", "#d55e00", "#e69f00", "#009e73", "#56b4e9", "#cc79a7"}

const (
	plotWidth = 900
	labelLeft = 170
	barHeight = 16
)

// plots draws one picture of the throughput rows and one of each row's latencies.
func (r *report) plots() map[string][]byte {
	files := make(map[string][]byte)
	var bars []workloadInfo
	for _, w := range r.Workloads {
		if strings.HasSuffix(w.Unit, "/s") {
			bars = append(bars, w)
		}
	}
	if len(bars) > 0 {
		files["throughput.svg"] = r.barPlot(bars)
	}
	for _, w := range r.timed() {
		files["latency-"+fileName(w.Name)+".svg"] = r.latencyPlot(&w)
	}
	return files
}

// fileName keeps letters and digits.
func fileName(s string) string {
	return strings.Trim(strings.Join(strings.FieldsFunc(s, func(c rune) bool {
		return (c < 'a' || c > 'z') && (c < '0' || c > '9')
	}), "-"), "-")
}

func openSVG(b *bytes.Buffer, height int) {
	fmt.Fprintf(b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, height)
	fmt.Fprintf(b, `<rect width="%d" height="%d" fill="white"/>`+"\n", plotWidth, height)
}

func text(b *bytes.Buffer, x, y float64, anchor, s string) {
	fmt.Fprintf(b, `<text x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", x, y, anchor, html.EscapeString(s))
}

// barPlot draws a bar for the median of each system in each row, with a line from the
// lowest to the highest round.
func (r *report) barPlot(rows []workloadInfo) []byte {
	top := 0.0
	for _, w := range rows {
		for _, s := range r.Systems {
			top = max(top, slices.Max(append(r.values(w.Name, s.Name, func(o *outcome) float64 { return o.Value }), 0)))
		}
	}
	scale := func(v float64) float64 { return v / top * (plotWidth - labelLeft - 90) }
	var b bytes.Buffer
	y := 30
	for _, w := range rows {
		began := y
		for i, s := range r.Systems {
			vs := r.values(w.Name, s.Name, func(o *outcome) float64 { return o.Value })
			if len(vs) == 0 {
				continue
			}
			mid := float64(y) + barHeight/2
			fmt.Fprintf(&b, `<rect x="%d" y="%d" width="%.1f" height="%d" fill="%s"/>`+"\n", labelLeft, y, scale(median(vs)), barHeight-2, colours[i%len(colours)])
			fmt.Fprintf(&b, `<path d="M%.1f %.1fH%.1f" stroke="black"/>`+"\n", labelLeft+scale(slices.Min(vs)), mid, labelLeft+scale(slices.Max(vs)))
			text(&b, labelLeft+scale(slices.Max(vs))+6, mid+4, "start", figure(median(vs)))
			y += barHeight
		}
		text(&b, labelLeft-8, float64(began+y)/2+4, "end", w.Name)
		y += barHeight
	}
	var all bytes.Buffer
	openSVG(&all, y)
	r.legend(&all)
	all.Write(b.Bytes())
	all.WriteString("</svg>\n")
	return all.Bytes()
}

// legend names the systems in a line at the top.
func (r *report) legend(b *bytes.Buffer) {
	x := 10.0
	for i, s := range r.Systems {
		fmt.Fprintf(b, `<rect x="%.1f" y="8" width="12" height="12" fill="%s"/>`+"\n", x, colours[i%len(colours)])
		text(b, x+17, 18, "start", s.Name)
		x += 40 + 7*float64(len(s.Name))
	}
}

// latencyPlot draws latencies over percentiles, both on scales that stretch the far
// end: the percentile by its nines, the latency by its logarithm.
func (r *report) latencyPlot(w *workloadInfo) []byte {
	const height, bottom, right = 400, 350, plotWidth - 30
	percents := []float64{50, 75, 90, 95, 99, 99.9, 99.99}
	low, high := math.Inf(1), 0.0
	for _, s := range r.Systems {
		for _, p := range percents {
			if v := r.quantileOf(w.Name, s.Name, p); v > 0 {
				low, high = min(low, v), max(high, v)
			}
		}
	}
	from, to := math.Floor(math.Log10(low)), math.Ceil(math.Log10(high)+1e-9)
	x := func(p float64) float64 {
		nines := func(p float64) float64 { return -math.Log10(1 - p/100) }
		return 70 + (nines(p)-nines(50))/(nines(99.99)-nines(50))*(right-70)
	}
	y := func(v float64) float64 { return bottom - (math.Log10(v)-from)/(to-from)*(bottom-60) }
	var b bytes.Buffer
	openSVG(&b, height)
	r.legend(&b)
	text(&b, 10, 44, "start", w.Name+", ms")
	for d := from; d <= to; d++ {
		v := math.Pow(10, d)
		fmt.Fprintf(&b, `<path d="M70 %.1fH%d" stroke="#ddd"/>`+"\n", y(v), right)
		text(&b, 62, y(v)+4, "end", strconv.FormatFloat(v, 'g', 3, 64))
	}
	for _, p := range percents {
		fmt.Fprintf(&b, `<path d="M%.1f 60V%d" stroke="#eee"/>`+"\n", x(p), bottom)
		text(&b, x(p), bottom+20, "middle", "p"+strconv.FormatFloat(p, 'g', -1, 64))
	}
	for i, s := range r.Systems {
		var points []string
		for _, p := range percents {
			if v := r.quantileOf(w.Name, s.Name, p); v > 0 {
				points = append(points, fmt.Sprintf("%.1f,%.1f", x(p), y(v)))
			}
		}
		if len(points) > 0 {
			fmt.Fprintf(&b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), colours[i%len(colours)])
		}
	}
	b.WriteString("</svg>\n")
	return b.Bytes()
}
