package cli

import (
	"fmt"
	"fusec"
	"slices"
	"strings"
)

// Suggest gives the known name that was probably meant, as the end of a message, or nothing.
func Suggest(name string, known []string) string {
	if k := nearest(name, known); k != "" {
		return fmt.Sprintf("; did you mean %s?", k)
	}
	return ""
}

// Unknown says that a name of the kind what is none of the known ones, which of them to choose, and which one was
// probably meant.
func Unknown(what, name string, known []string) string {
	return fmt.Sprintf("unknown %s %q; choose %s%s", what, name, Either(known), Suggest(name, known))
}

// Either lists names between which there is a choice: "a, b or c".
func Either(names []string) string {
	if len(names) < 2 {
		return strings.Join(names, "")
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// synonyms are other tools' names for precisions, and for targets, which say them.
var synonyms = map[string]string{
	"fp32": "f32", "float": "f32", "float32": "f32", "single": "f32", "tensorfloat32": "tf32",
	"fp16": "f16", "half": "f16", "float16": "f16", "bfloat16": "bf16", "bfloat": "bf16", "brain": "bf16",
}

func init() {
	for _, name := range fusec.Targets() {
		t, _ := fusec.TargetNamed(name)
		for _, s := range t.Synonyms {
			synonyms[s] = name
		}
	}
}

// suggestFlag is suggest for flags.
func suggestFlag(name string, known []string) string {
	if k := nearest(name, known); k != "" {
		return fmt.Sprintf("; did you mean %s?", dashed(k))
	}
	return ""
}

// nearest is the known name with the fewest edits from name, if they are few for its length, or one that name begins.
func nearest(name string, known []string) string {
	kind, index, _ := strings.Cut(strings.ToLower(name), ":")
	if k := synonyms[kind]; slices.Contains(known, k) {
		if index != "" {
			k += ":" + index
		}
		return k
	}
	best, least := "", max(1, len(name)/3)+1
	for _, k := range known {
		if d := distance(name, k); d < least {
			best, least = k, d
		}
	}
	if best != "" || len(name) < 2 {
		return best
	}
	for _, k := range known {
		if strings.HasPrefix(k, name) {
			return k
		}
	}
	return ""
}

// distance counts the characters to insert, delete, replace or swap with their neighbour (optimal string alignment).
func distance(a, b string) int {
	s, t := []rune(a), []rune(b)
	d := make([][]int, len(s)+1)
	for i := range d {
		d[i] = make([]int, len(t)+1)
		d[i][0] = i
	}
	for j := range t {
		d[0][j+1] = j + 1
	}
	for i := range s {
		for j := range t {
			change := d[i][j]
			if s[i] != t[j] {
				change++
			}
			d[i+1][j+1] = min(d[i][j+1]+1, d[i+1][j]+1, change)
			if i > 0 && j > 0 && s[i] == t[j-1] && s[i-1] == t[j] {
				d[i+1][j+1] = min(d[i+1][j+1], d[i-1][j-1]+1)
			}
		}
	}
	return d[len(s)][len(t)]
}
