package cuda

import (
	"fmt"
	"math"
	"regexp"
	"strings"

	"fusec/graph"
)

// A run is a number of axes that every access of a kernel walks through with one stride. Its coordinate stands for that
// of the innermost of them; those of the others are 0.
type run struct {
	size, axis int
	name       string // of the coordinate
}

// mergeAxes makes runs of the given axes of s, outermost first. Axes of one element fall away.
func mergeAxes(s graph.Shape, axes []int, layouts []graph.Layout) []run {
	var runs []run
	for _, axis := range axes {
		size := s.At(axis)
		if size == 1 {
			continue
		}
		last := len(runs) - 1
		merge := last >= 0
		for i := range layouts {
			l := &layouts[i]
			merge = merge && l.Stride[runs[last].axis] == l.Stride[axis]*size
		}
		if merge {
			runs[last].size *= size
			runs[last].axis = axis
		} else {
			runs = append(runs, run{size, axis, ""})
		}
	}
	name(runs, "c")
	return runs
}

// name gives the coordinates of runs names.
func name(runs []run, prefix string) {
	for i := range runs {
		runs[i].name = fmt.Sprint(prefix, i)
	}
}

// axisList lists the axes of a shape that are, or are not, among the given ones.
func axisList(s graph.Shape, of graph.Ints, in bool) []int {
	var l []int
	for i := range s.Rank() {
		if of.Has(i) == in {
			l = append(l, i)
		}
	}
	return l
}

func elemsOf(runs []run) int {
	n := 1
	for _, r := range runs {
		n *= r.size
	}
	return n
}

// coordinates names the coordinates of all axes, where the runs have some and 0 elsewhere.
func coordinates(rank int, runs ...[]run) []string {
	c := make([]string, rank)
	for i := range c {
		c[i] = "0"
	}
	for _, list := range runs {
		for _, r := range list {
			c[r.axis] = r.name
		}
	}
	return c
}

// split writes how the coordinates of runs follow from an index, of units of W elements of the last run if wide is set.
func split(index, typ string, runs []run, wide bool, indent string) string {
	var b strings.Builder
	rest := index
	for i := len(runs) - 1; i >= 0; i-- {
		size, times := fmt.Sprint(max(runs[i].size, 1)), ""
		if wide && i == len(runs)-1 {
			size, times = fmt.Sprintf("(%s / W)", size), " * W"
		}
		name := runs[i].name
		if i == 0 {
			fmt.Fprintf(&b, "%sconst %s %s = %s%s;\n", indent, typ, name, rest, times)
			break
		}
		fmt.Fprintf(&b, "%sconst %s %s = %s %% %s%s;\n", indent, typ, name, rest, size, times)
		next := fmt.Sprintf("%s / %s", rest, size)
		rest = name + "_"
		fmt.Fprintf(&b, "%sconst %s %s = %s;\n", indent, typ, rest, next)
	}
	return b.String()
}

// needed leaves out of declarations, a line each, those of constants that neither the text nor what is left reads.
func needed(declarations, text string) string {
	lines := strings.SplitAfter(declarations, "\n")
	kept := ""
	for i := len(lines) - 1; i >= 0; i-- {
		if m := declaration.FindStringSubmatch(lines[i]); m == nil || strings.Contains(kept, m[1]) || strings.Contains(text, m[1]) {
			kept = lines[i] + kept
		}
	}
	return kept
}

var declaration = regexp.MustCompile(`^ *const \w+ (\w+) =`)

// prune leaves out of the unit's text between two places what is not needed after them.
func (u *unit) prune(from, to int) {
	s := u.text.String()
	u.text.Reset()
	u.printf("%s", s[:from]+needed(s[from:to], s[to:])+s[to:])
}

// indexType is the C++ type that counts elements.
func indexType(n int) string {
	if n > math.MaxInt32 {
		return "i64"
	}
	return "int"
}

// layouts lists the layouts that a body, written for trial, reads and writes through.
func (b *printer) layouts() (l []graph.Layout) {
	for _, r := range b.reads {
		l = append(l, b.p.Values[r].Layout)
	}
	for i := range b.p.Stores {
		l = append(l, b.p.Stores[i].Layout)
	}
	return l
}

// vectorWidth is how many elements a thread handles side by side: as many as fill 16 bytes of the narrowest type of two
// bytes or more that is accessed along the axis, if size allows; 0 asks for no divisor.
func (b *printer) vectorWidth(axis, size int, outputs []graph.Layout) int {
	narrow := 16
	see := func(d graph.DType, l graph.Layout) {
		if l.Stride[axis] == 1 || l.Stride[axis] == -1 {
			narrow = min(narrow, max(d.Size(), 2))
		}
	}
	bytes := true
	for _, r := range b.reads {
		d := b.u.args[b.p.Values[r].Arg].DType
		see(d, b.p.Values[r].Layout)
		bytes = bytes && d.Size() == 1
	}
	for i, l := range outputs {
		see(b.u.results[i].DType, l)
		bytes = bytes && b.u.results[i].DType.Size() == 1
	}
	w := 16 / narrow
	if bytes && narrow == 2 {
		w = 16
	}
	for size != 0 && size%w != 0 {
		w /= 2
	}
	return w
}
