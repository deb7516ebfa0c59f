package cli

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Shell writes words as a command line that a shell reads as these words. Most words stay as they are. What a shell would
// interpret is between single quotes, and words with control characters or bytes that are no UTF-8 are in the form $'…' of bash,
// zsh and POSIX.1-2024.
func Shell(words ...string) string {
	quoted := make([]string, len(words))
	for i, w := range words {
		quoted[i] = shellWord(w)
	}
	return strings.Join(quoted, " ")
}

func shellWord(w string) string {
	switch {
	case Plain(w) != w || strings.ContainsAny(w, "\n\t"):
		var b strings.Builder
		b.WriteString("$'")
		for len(w) > 0 {
			r, size := utf8.DecodeRuneInString(w)
			switch c := w[:size]; {
			case c == `\` || c == `'`:
				b.WriteString(`\` + c)
			case Plain(c) == c && c != "\n" && c != "\t":
				b.WriteRune(r)
			default:
				for _, octet := range []byte(c) {
					fmt.Fprintf(&b, `\%03o`, octet)
				}
			}
			w = w[size:]
		}
		return b.String() + "'"
	case w == "" || w[0] == '~' || w[0] == '=' || strings.ContainsAny(w, interpreted):
		return "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
	}
	return w
}

// interpreted are the characters that a shell may take for something else than themselves, wherever they are in a word.
const interpreted = " !\"#$&'()*;<>?[\\]^`{|}"
