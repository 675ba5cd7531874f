package bench

import (
	"fmt"
	"html"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// point is one measurement in a plot: x is the size of the buffer, y is the median.
type point struct{ x, y float64 }

// series has the points of one system.
type series struct {
	name   string
	points []point
}

// plot is a chart with logarithmic axes, as SVG.
type plot struct {
	title, xLabel, yLabel string
	xTick                 func(float64) string
	series                []series
}

// These are the sizes of the plot, in pixels.
const (
	plotWidth, plotHeight                    = 860, 460
	plotLeft, plotRight, plotTop, plotBottom = 70, 330, 40, 50
)

var plotColours = []string{"#0b6e4f", "#c1292e", "#235789", "#e0a100", "#7b4b94", "#4a4e4d", "#d0662c", "#3aa0a8"}

// WritePlots writes a plot for each kind of memory into a folder. A plot shows the median time of a transfer for each buffer size.
func (r *Report) WritePlots(folder string) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for _, kind := range r.kinds() {
		p := plot{title: "Transfer of a new buffer, " + kind + " memory", xLabel: "size", yLabel: "median, µs",
			xTick: func(x float64) string { return sizeOf(uint64(x)) }}
		for _, one := range r.Results {
			if one.Kind == kind && one.Workload == "transfer" && one.P50 != nil {
				p.add(one.System, point{float64(one.Bytes), *one.P50})
			}
		}
		if len(p.series) == 0 {
			continue
		}
		if err := os.WriteFile(filepath.Join(folder, "transfer-"+kind+".svg"), []byte(p.svg()), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (r *Report) kinds() []string {
	var kinds []string
	seen := map[string]bool{}
	for _, one := range r.Results {
		if !seen[one.Kind] {
			seen[one.Kind] = true
			kinds = append(kinds, one.Kind)
		}
	}
	return kinds
}

func (p *plot) add(name string, at point) {
	for i := range p.series {
		if p.series[i].name == name {
			p.series[i].points = append(p.series[i].points, at)
			return
		}
	}
	p.series = append(p.series, series{name, []point{at}})
}

// axis maps values to pixels, with a logarithmic scale.
type axis struct{ low, high, from, to float64 }

func (a axis) at(v float64) float64 {
	return a.from + (math.Log(v)-math.Log(a.low))/(math.Log(a.high)-math.Log(a.low))*(a.to-a.from)
}

// bounds returns two powers of base, low and high, between which all values lie. high is at least base times low.
func (p *plot) bounds(of func(point) float64, base float64) (low, high float64) {
	low, high = math.Inf(1), 0
	for _, s := range p.series {
		for _, at := range s.points {
			low, high = min(low, of(at)), max(high, of(at))
		}
	}
	low = math.Pow(base, math.Floor(math.Log(low)/math.Log(base)+1e-9))
	high = math.Pow(base, math.Ceil(math.Log(high)/math.Log(base)-1e-9))
	return low, max(high, low*base)
}

// svg returns the plot as SVG.
func (p *plot) svg() string {
	var b strings.Builder
	low, high := p.bounds(func(at point) float64 { return at.x }, 2)
	x := axis{low, high, plotLeft, plotWidth - plotRight}
	low, high = p.bounds(func(at point) float64 { return at.y }, 10)
	y := axis{low, high, plotHeight - plotBottom, plotTop}
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", plotWidth, plotHeight)
	fmt.Fprintf(&b, `<rect width="100%%" height="100%%" fill="white"/><text x="%d" y="24" font-size="15">%s</text>`+"\n", plotLeft, html.EscapeString(p.title))
	for v := y.low; v <= y.high*1.001; v *= 10 {
		fmt.Fprintf(&b, `<line x1="%g" x2="%g" y1="%.1f" y2="%.1f" stroke="#ddd"/><text x="%g" y="%.1f" text-anchor="end">%g</text>`+"\n",
			x.from, x.to, y.at(v), y.at(v), x.from-6, y.at(v)+4, v)
	}
	ticks := map[float64]bool{}
	for _, s := range p.series {
		for _, at := range s.points {
			ticks[at.x] = true
		}
	}
	for _, v := range slices.Sorted(maps.Keys(ticks)) {
		fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`+"\n", x.at(v), y.from+18, html.EscapeString(p.xTick(v)))
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`+"\n", (x.from+x.to)/2, y.from+38, html.EscapeString(p.xLabel))
	fmt.Fprintf(&b, `<text transform="translate(18 %g) rotate(-90)" text-anchor="middle">%s</text>`+"\n", (y.from+y.to)/2, html.EscapeString(p.yLabel))
	for i, s := range p.series {
		colour := plotColours[i%len(plotColours)]
		var line strings.Builder
		for _, at := range s.points {
			fmt.Fprintf(&line, "%.1f,%.1f ", x.at(at.x), y.at(at.y))
			fmt.Fprintf(&b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"/>`, x.at(at.x), y.at(at.y), colour)
		}
		fmt.Fprintf(&b, `<polyline fill="none" stroke="%s" stroke-width="2" points="%s"/>`, colour, strings.TrimSpace(line.String()))
		row := plotTop + 10 + 20*i
		fmt.Fprintf(&b, `<rect x="%g" y="%d" width="12" height="12" fill="%s"/><text x="%g" y="%d">%s</text>`+"\n",
			x.to+16, row-10, colour, x.to+34, row, html.EscapeString(s.name))
	}
	b.WriteString("</svg>\n")
	return b.String()
}
