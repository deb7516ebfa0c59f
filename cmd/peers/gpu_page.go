package main

// The page and the pictures of what was measured on a GPU.

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// page writes a Markdown page about the run: for each part its meaning, a picture of bars in a folder of the page's name, and a
// table. A last column has the ratios of another run, of files that --raw wrote.
func (r *gpuRun) page(path, beside string) error {
	other := &gpuRun{}
	if beside != "" {
		if err := other.read(beside); err != nil {
			return err
		}
	}
	pictures := strings.TrimSuffix(path, ".md")
	if err := os.MkdirAll(pictures, 0o755); err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# fusec and its rivals on %s\n\n", r.about)
	cards := ""
	if r.about.GPUs > 1 {
		cards = fmt.Sprintf(", on one of %d GPUs", r.about.GPUs)
	}
	b.WriteString("Written by `peers gpu --page`. Each part was measured by fusec and then by its rivals" + cards +
		". Times are medians of 20 runs by the GPU's clock, with all values on the GPU, and fusec's results are compared with what " +
		"they should be first. The best rival is the fastest. Bars are rates: fusec's is blue.\n")
	if r.about.Note != "" {
		fmt.Fprintf(&b, "\n%s\n", r.about.Note)
	}
	if len(other.figures) > 0 {
		fmt.Fprintf(&b, "\nThe last column has the ratios of another run, on %s. %s\n", other.about, other.about.Note)
	}
	for _, p := range gpuParts {
		figures := r.of(p)
		if len(figures) == 0 {
			continue
		}
		list := rows(figures)
		picture := filepath.Join(pictures, p.name+".svg")
		drawing, err := bars(list)
		if err != nil {
			return err
		}
		if err := os.WriteFile(picture, drawing, 0o644); err != nil {
			return err
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n\n![%[1]s](%[3]s)\n\n", p.name, p.meaning, filepath.ToSlash(filepath.Join(
			filepath.Base(pictures), p.name+".svg")))
		b.WriteString(table(list, other.of(p)))
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}

// of are the figures of a part.
func (r *gpuRun) of(p gpuPart) []gpuFigure {
	return slices.DeleteFunc(slices.Clone(r.figures), func(f gpuFigure) bool { return f.part != p.name })
}

func (a gpuAbout) String() string {
	device := a.Device
	if device == "" {
		device = "a GPU"
	}
	if a.Versions != "" {
		device += " (" + a.Versions + ")"
	}
	if date, err := time.Parse(time.DateOnly, a.Date); err == nil {
		device += date.Format(", 2 January 2006")
	}
	return device
}

// table has a row for each workload.
func table(list []*gpuRow, other []gpuFigure) string {
	head, line := "| workload | fusec | best rival | times as fast |", "| --- | --- | --- | --- |"
	if len(other) > 0 {
		head, line = head+" there |", line+" --- |"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", head, line)
	beside := rows(other)
	for _, r := range list {
		mine, best, ratio := "", "", strings.Trim(r.ratio(), "–")
		if r.ours != nil {
			mine = r.ours.String()
		}
		if len(r.rivals) > 0 {
			best = r.rivals[0].Peer + " " + r.rivals[0].String()
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s |", r.name, mine, best, ratio)
		if len(other) > 0 {
			there := ""
			if i := slices.IndexFunc(beside, func(o *gpuRow) bool { return o.name == r.name }); i >= 0 {
				there = strings.Trim(beside[i].ratio(), "–")
			}
			fmt.Fprintf(&b, " %s |", there)
		}
		b.WriteString("\n")
	}
	return b.String()
}

//go:embed bars.tmpl
var barsText string

var barsTemplate = template.Must(template.New("bars").Parse(barsText))

// bar is one rate in a picture; the first of a workload has its name.
type bar struct {
	Name, Label    string
	Y, Length, End int
	Ours           bool
}

// bars draws fusec's rate at each workload above those of its rivals, as SVG.
func bars(list []*gpuRow) ([]byte, error) {
	const row, gap, left, longest, right = 13, 6, 330, 360, 240
	most := 0.0
	for _, r := range list {
		if r.ours != nil {
			most = max(most, r.ours.Rate)
		}
		for _, f := range r.rivals {
			most = max(most, f.Rate)
		}
	}
	var drawn []bar
	y := gap
	for _, r := range list {
		name := r.name
		draw := func(f gpuFigure, label string, ours bool) {
			if f.Error != "" {
				label, f.Rate = f.Peer+" failed", 0
			}
			length := int(longest * f.Rate / most)
			drawn = append(drawn, bar{name, label, y, length, left + length, ours})
			name = ""
			y += row
		}
		if r.ours != nil {
			label := fmt.Sprintf("%.4g %s", r.ours.Rate, r.ours.Unit)
			if ratio := r.ratio(); ratio != "–" {
				label += ", " + ratio + " times as fast"
			}
			draw(*r.ours, label, true)
		}
		for _, f := range r.rivals {
			draw(f, fmt.Sprintf("%s %.4g", f.Peer, f.Rate), false)
		}
		y += gap
	}
	var b bytes.Buffer
	err := barsTemplate.Execute(&b, map[string]any{"Left": left, "Width": left + longest + right, "Height": y, "Bars": drawn})
	return b.Bytes(), err
}
