package cli

import (
	"io"
	"os"
	"strings"
	"unicode/utf8"
)

// fallbackColumns is the width of a terminal that does not tell it.
const fallbackColumns = 80

// columns is the width of standard output in characters, to which tables and lines are fitted. It is 0 where nothing is
// shortened: in a pipe or a file, and with --wide. [RunCommandLine] sets it.
var columns int

// Columns is the width of standard output in characters, or 0 where nothing is to be shortened.
func Columns() int { return columns }

// columnsOf is the width of a terminal in characters, or 0 if w is none. A writer may tell its width by a method Columns.
func columnsOf(w io.Writer) int {
	if c, ok := w.(interface{ Columns() int }); ok {
		return c.Columns()
	}
	if f, ok := w.(*os.File); ok && IsTerminal(w) {
		if n := terminalColumns(f); n > 0 {
			return n
		}
		return fallbackColumns
	}
	return 0
}

// shorten cuts a text to n characters, in the middle.
func shorten(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	if n < 2 {
		return "…"[:3*max(n, 0)]
	}
	r := []rune(s)
	return string(r[:n/2]) + "…" + string(r[len(r)-(n-1-n/2):])
}

// wrapped breaks the lines of a text that are longer than width between words. What follows is indented by two more than
// its line. A word that is longer than the width stays whole.
func wrapped(text string, width int) string {
	if width <= 0 {
		return text
	}
	var b strings.Builder
	for line := range strings.Lines(text) {
		body := strings.TrimRight(line, "\n")
		if utf8.RuneCountInString(body) <= width {
			b.WriteString(line)
			continue
		}
		indent := body[:len(body)-len(strings.TrimLeft(body, " "))]
		b.WriteString(fill(strings.Fields(body), indent, indent+"  ", "", width) + line[len(body):])
	}
	return b.String()
}

// fill puts words into lines of width characters, of which the first begins with first, the others with rest, and each
// but the last ends with end.
func fill(words []string, first, rest, end string, width int) string {
	var b strings.Builder
	b.WriteString(first)
	at, room := utf8.RuneCountInString(first), width-utf8.RuneCountInString(end)
	for i, word := range words {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case at+1+n > room:
			b.WriteString(end + "\n" + rest)
			at = utf8.RuneCountInString(rest)
		default:
			b.WriteByte(' ')
			at++
		}
		b.WriteString(word)
		at += n
	}
	return b.String()
}

// leastCell is to how many characters names in a table are shortened before columns are left out.
const leastCell = 8

// fit makes widths of columns, of which those of -1 are left out already, sum up to the terminal's. First it shortens the
// columns of text, the widest first; then it leaves out columns, text first, from the right. It returns the heads of those.
func fit(width []int, head []string, limit int) (out []string) {
	text := func(i int) bool { return width[i] >= 0 && !strings.HasPrefix(head[i], ">") }
	over := func() int {
		sum := -2
		for _, w := range width {
			if w >= 0 {
				sum += w + 2
			}
		}
		return sum - limit
	}
	for over() > 0 {
		widest := -1
		for i := range width {
			if text(i) && width[i] > leastCell && (widest < 0 || width[i] > width[widest]) {
				widest = i
			}
		}
		if widest >= 0 {
			width[widest]--
			continue
		}
		last := -1
		for _, any := range []bool{false, true} {
			for i := 1; i < len(width) && (last < 0 || !any); i++ {
				if text(i) || any && width[i] >= 0 {
					last = i
				}
			}
		}
		if last < 0 {
			break
		}
		width[last] = -1
		out = append([]string{strings.TrimPrefix(head[last], ">")}, out...)
	}
	return out
}
