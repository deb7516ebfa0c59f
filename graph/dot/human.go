package dot

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"fusec/graph"
	"fusec/graph/trace"
)

var oneLine = strings.NewReplacer("\n", `\n`, "\r", `\r`, "\t", `\t`)

// clean makes user text safe to print on one line: line breaks and tabs become escapes, other characters that do not
// print become U+FFFD.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) {
			return r
		}
		return utf8.RuneError
	}, oneLine.Replace(strings.ToValidUTF8(s, "\uFFFD")))
}

// short cleans s and cuts it to n characters.
func short(s string, n int) string {
	s = clean(s)
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// shortMiddle cleans s and cuts its middle out, so that n characters are left: of a path, the ends tell most.
func shortMiddle(s string, n int) string {
	r := []rune(clean(s))
	if len(r) <= n {
		return string(r)
	}
	return string(r[:n/3]) + "…" + string(r[len(r)-(n-1-n/3):])
}

// scaled prints n with three significant digits and a prefix; from one prefix to the next is a factor of step.
func scaled(n int64, unit string, step float64, prefixes ...string) string {
	v, prefix := float64(n), ""
	for _, p := range prefixes {
		if v < 0.9995*step {
			break
		}
		v, prefix = v/step, p
	}
	digits := 0
	if prefix != "" {
		for w := v; w < 99.5 && digits < 2; w *= 10 {
			digits++
		}
	}
	s := strconv.FormatFloat(v, 'f', digits, 64)
	if digits > 0 {
		s = strings.TrimRight(strings.TrimRight(s, "0"), ".")
	}
	return s + " " + prefix + unit
}

func humanFLOPs(n int64) string { return scaled(n, "FLOP", 1000, "k", "M", "G", "T", "P", "E") }

func humanBytes(n int64) string { return scaled(n, "B", 1024, "Ki", "Mi", "Gi", "Ti", "Pi", "Ei") }

// humanMeasure prints a measure with its name, unless that is the unit. Before the number stands about, which may be empty.
func humanMeasure(m trace.Measure, about string) string {
	text := m.Number() + " " + m.Unit
	switch whole := m.Value == math.Trunc(m.Value) && math.Abs(m.Value) < 1<<53; {
	case whole && m.Unit == "bytes":
		text = humanBytes(int64(m.Value))
	case whole && m.Unit != "%":
		text = scaled(int64(m.Value), m.Unit, 1000, "k", "M", "G")
	}
	if m.Name == m.Unit {
		return about + text
	}
	return m.Name + " " + about + text
}

// humanTime prints a duration with three significant digits.
func humanTime(d time.Duration) string {
	unit, name := time.Nanosecond, "ns"
	switch {
	case d >= time.Second:
		unit, name = time.Second, "s"
	case d >= time.Millisecond:
		unit, name = time.Millisecond, "ms"
	case d >= time.Microsecond:
		unit, name = time.Microsecond, "µs"
	}
	return strconv.FormatFloat(float64(d)/float64(unit), 'g', 3, 64) + " " + name
}

// scalar prints a scalar constant: integers exactly.
func scalar(t *graph.Tensor) string {
	if t.Type.DType.IsInt() {
		digits, negative := strings.CutPrefix(t.Whole(0), "-")
		if negative {
			return "−" + digits
		}
		return digits
	}
	return number(t.Float(0))
}

// number prints a number with six significant digits.
func number(v float64) string {
	s := strconv.FormatFloat(v, 'g', 6, 64)
	switch s {
	case "+Inf":
		return "∞"
	case "-Inf":
		return "−∞"
	}
	s = strings.NewReplacer("e-0", "e-", "e+0", "e").Replace(s)
	if rest, negative := strings.CutPrefix(s, "-"); negative {
		return "−" + rest
	}
	return s
}

// plural is "1 node" or "3 nodes".
func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "ch"):
		return fmt.Sprintf("%d %ses", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// position shortens a file:line to the file and its folder, which are the same on every machine.
func position(pos string) string {
	pos = strings.ReplaceAll(pos, `\`, "/")
	dir, file := path.Split(pos)
	if dir = path.Base(dir); dir != "." && dir != "/" {
		file = dir + "/" + file
	}
	return clean(file)
}

// firstPos is the first known position among origins, shortened; more counts the other known ones.
func firstPos(origins []graph.Origin) (pos string, more int) {
	for _, o := range origins {
		switch {
		case o.Pos == "":
		case pos == "":
			pos = position(o.Pos)
		default:
			more++
		}
	}
	return pos, more
}
