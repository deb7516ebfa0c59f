package dot

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"fusec/graph"
)

// namePattern joins the names of the first and the last of several similar things: h0.w and h11.w give h{0…11}.w. Names
// that differ in more than one number give the first name.
func namePattern(first, last string) string {
	if first == "" || last == "" || first == last {
		return first
	}
	pre, a, b, suf := split(first, last)
	if a == "" || b == "" || strings.ContainsFunc(a+b, notDigit) {
		return first
	}
	return pre + "{" + a + "…" + b + "}" + suf
}

func notDigit(r rune) bool { return r < '0' || r > '9' }

// unnumbered is a name with its numbers left out.
func unnumbered(name string) string {
	return strings.Map(func(r rune) rune {
		if notDigit(r) {
			return r
		}
		return -1
	}, name)
}

// split cuts two strings into a common prefix, what differs (whole numbers), and a common suffix.
func split(a, b string) (pre, midA, midB, suf string) {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	for i > 0 && (!notDigit(rune(a[i-1])) || !utf8.ValidString(a[:i])) {
		i--
	}
	ra, rb, j := a[i:], b[i:], 0
	for j < len(ra) && j < len(rb) && ra[len(ra)-1-j] == rb[len(rb)-1-j] {
		j++
	}
	for j > 0 && (!notDigit(rune(ra[len(ra)-j])) || !utf8.ValidString(ra[len(ra)-j:])) {
		j--
	}
	return a[:i], ra[:len(ra)-j], rb[:len(rb)-j], ra[len(ra)-j:]
}

// blockName is the common name of a block's repetitions, such as blocks.{0…11}, from the first of its own sources or
// nodes whose name counts them.
func blockName(blk *block) string {
	if blk.named() {
		return fmt.Sprintf("%s{%d…%d}", blk.prefix, min(blk.first, blk.final), max(blk.first, blk.final))
	}
	for _, list := range [][]*graph.Node{blk.leaves, blk.nodes} {
		for _, n := range list {
			if s := countedPrefix(n.Name, blk.counterpart(n).Name); s != "" {
				return s
			}
		}
	}
	return ""
}

func countedPrefix(first, last string) string {
	p := namePattern(clean(first), clean(last))
	if i := strings.IndexByte(p, '}'); i >= 0 && strings.Contains(p, "…") {
		return p[:i+1]
	}
	return ""
}

// wrap breaks text at spaces into lines of about width characters; a longer word stays whole up to twice that.
func wrap(s string, width int) []string {
	var lines []string
	line := ""
	for _, word := range strings.FieldsFunc(s, unicode.IsSpace) {
		word = short(word, 2*width)
		switch {
		case line == "":
			line = word
		case utf8.RuneCountInString(line)+1+utf8.RuneCountInString(word) > width:
			lines, line = append(lines, line), word
		default:
			line += " " + word
		}
	}
	if line != "" {
		lines = append(lines, line)
	}
	return lines
}

func cleanAll(names []string) []string {
	list := make([]string, len(names))
	for i, n := range names {
		list[i] = clean(n)
	}
	return list
}
