package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"fusec/graph"
)

// HumanBytes prints a size with three digits that mean something.
func HumanBytes(n int64) string {
	return scaled(float64(n), 1024, "B", "KiB", "MiB", "GiB", "TiB")
}

// HumanFLOPs prints an amount of arithmetic.
func HumanFLOPs(n int64) string {
	return scaled(float64(n), 1000, "FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP")
}

// HumanTime prints a duration.
func HumanTime(d time.Duration) string {
	return scaled(float64(d.Nanoseconds()), 1000, "ns", "µs", "ms", "s")
}

// scaled prints v in the largest unit of which there is one.
func scaled(v, step float64, units ...string) string {
	i := 0
	for i < len(units)-1 && v >= 0.9995*step {
		v /= step
		i++
	}
	if i == 0 {
		return fmt.Sprintf("%.0f %s", v, units[0])
	}
	return Digits(v) + " " + units[i]
}

// Digits prints a positive number with three digits.
func Digits(v float64) string {
	switch {
	case v >= 99.95:
		return fmt.Sprintf("%.0f", v)
	case v >= 9.995:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

// Percent prints a part of 1.
func Percent(v float64) string { return fmt.Sprintf("%.1f %%", 100*v) }

// Plural counts things.
func Plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// LastOrigins remembers what was made of the last list of origins: launches that come from one place share a list, which may
// be long.
type LastOrigins[T any] struct {
	list []graph.Origin
	made T
}

func (l *LastOrigins[T]) Get(list []graph.Origin, build func([]graph.Origin) T) T {
	if len(list) == 0 || len(list) != len(l.list) || &list[0] != &l.list[0] {
		l.list, l.made = list, build(list)
	}
	return l.made
}

// Origins is the user's names and the first position of the nodes that a launch computes.
func Origins(list []graph.Origin) (names, pos string) {
	var all []string
	places := map[string]bool{}
	for _, o := range list {
		if o.Name != "" {
			all = append(all, o.Name)
		}
		if o.Pos == "" {
			continue
		}
		if pos == "" {
			pos = o.Pos
		}
		places[o.Pos] = true
	}
	if len(places) > 1 {
		pos += fmt.Sprintf(" (+%d)", len(places)-1)
	}
	return strings.Join(FirstOf(all, 4), ", "), pos
}

// table is text in columns, two spaces apart. A column whose head begins with > is aligned to the right.
type table struct {
	head []string
	rows [][]string
}

func NewTable(head ...string) *table { return &table{head: head} }

func (t *table) Row(cells ...string) {
	for i := range cells {
		cells[i] = Plain(cells[i])
	}
	t.rows = append(t.rows, cells)
}

// Plain quotes the control characters of a user's text as Go does, and bytes that are no UTF-8, so that no name moves the
// cursor of a terminal or changes its title. Ends of lines and tabs stay.
func Plain(s string) string {
	var b strings.Builder
	for len(s) > 0 {
		r, size := utf8.DecodeRuneInString(s)
		switch {
		case r == '\n' || r == '\t' || strconv.IsPrint(r) && !(r == utf8.RuneError && size == 1):
			b.WriteString(s[:size])
		default:
			b.WriteString(strings.Trim(strconv.Quote(s[:size]), `"`))
		}
		s = s[size:]
	}
	return b.String()
}

// String prints the table. Columns without any cell are left out. On a terminal the table fits its width: names are
// shortened in the middle, and columns for which there is no place are left out and named below.
func (t *table) String() string {
	width := make([]int, len(t.head))
	for i, h := range t.head {
		used := false
		width[i] = utf8.RuneCountInString(strings.TrimPrefix(h, ">"))
		for _, r := range t.rows {
			width[i] = max(width[i], utf8.RuneCountInString(r[i]))
			used = used || r[i] != ""
		}
		if !used {
			width[i] = -1
		}
	}
	var left []string
	if columns > 0 {
		left = fit(width, t.head, columns)
	}
	var b strings.Builder
	line := func(cells []string, head bool) {
		var l strings.Builder
		for i, c := range cells {
			if width[i] < 0 {
				continue
			}
			if head {
				c = strings.TrimPrefix(c, ">")
			}
			c = shorten(c, width[i])
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if strings.HasPrefix(t.head[i], ">") {
				c = pad + c
			} else {
				c += pad
			}
			l.WriteString(c + "  ")
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(t.head, true)
	for _, r := range t.rows {
		line(r, false)
	}
	if len(left) > 0 {
		fmt.Fprintf(&b, "left out: %s; --wide prints all\n", strings.Join(left, ", "))
	}
	return b.String()
}

// FirstOf is at most n of the names, and how many more there are.
func FirstOf(names []string, n int) []string {
	if len(names) <= n {
		return names
	}
	return append(append([]string(nil), names[:n]...), fmt.Sprintf("and %d more", len(names)-n))
}

// Cycles prints a number of cycles, none as nothing.
func Cycles(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprint(n)
}
