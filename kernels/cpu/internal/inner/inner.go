// Package inner counts the instructions of loops in generated assembly for Arm, for tests. It reads files, so it runs on any
// processor.
package inner

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// A Count has the instructions of a loop: all, those that name a vector register, and these by their names. Loads and stores have
// Go's names, FMOVQ and FLDPQ, others those of Arm's manual.
type Count struct {
	All, Vectors int
	Of           map[string]int
}

var (
	instruction = regexp.MustCompile(`(?m)^\t.*$`)
	encoded     = regexp.MustCompile(`^\tWORD .* // (\w+) .*\bv\d`)
	named       = regexp.MustCompile(`^\t(F\w+) .*\bF\d`)
)

// Loop counts what stands between a label of a function and the last jump to it.
func Loop(file, function, label string) (c Count, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return c, err
	}
	_, body, ok := strings.Cut(string(text), "\nTEXT ·"+function+"(")
	body, _, _ = strings.Cut(body, "\nTEXT ")
	_, body, loops := strings.Cut(body, "\n"+label+":\n")
	end := regexp.MustCompile(`(?m)^\t[BC]\w+ (R\d+, )?`+label+`$`).FindAllStringIndex(body, -1)
	if !ok || !loops || len(end) == 0 {
		return c, fmt.Errorf("%s has no function %s with a loop %s", file, function, label)
	}
	c.Of = map[string]int{}
	for _, line := range instruction.FindAllString(body[:end[len(end)-1][1]], -1) {
		c.All++
		for _, kind := range []*regexp.Regexp{encoded, named} {
			if m := kind.FindStringSubmatch(line); m != nil {
				c.Vectors++
				c.Of[m[1]]++
			}
		}
	}
	return c, nil
}
