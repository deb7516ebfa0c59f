package cuda

// What a compiled kernel is found by: its source, without what the compiler does not see.

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// Key is the SHA-256, in hexadecimal, of what the compiler sees of a CUDA C++ source: comments, blank space at the
// ends of lines and blank lines are left out, strings are kept as they are. Sources of one key give the same machine
// code, so that a program finds its compiled kernels when only the user's names in it change.
func Key(source string) string {
	sum := sha256.Sum256([]byte(strip(source)))
	return hex.EncodeToString(sum[:])
}

// strip replaces each comment by a space, and then drops blank space at the ends of lines and blank lines.
func strip(s string) string {
	var out, blanks strings.Builder // blanks waits for what follows it on its line
	empty := true                   // the line so far
	for i := 0; i < len(s); {
		n := token(s[i:])
		switch {
		case s[i] == '\n':
			// A blank line after a backslash ends what the backslash continues.
			if !empty || strings.HasSuffix(out.String(), "\\\n") {
				out.WriteByte('\n')
			}
			blanks.Reset()
			empty = true
		case s[i] == ' ' || s[i] == '\t' || s[i] == '\r':
			blanks.WriteByte(s[i])
		case strings.HasPrefix(s[i:], "//") || strings.HasPrefix(s[i:], "/*"):
			blanks.WriteByte(' ')
		default:
			out.WriteString(blanks.String())
			out.WriteString(s[i : i+n])
			blanks.Reset()
			empty = false
		}
		i += n
	}
	if !empty {
		out.WriteByte('\n')
	}
	return out.String()
}

// token gives the length of the token, comment or single byte that s begins with.
func token(s string) int {
	switch {
	case strings.HasPrefix(s, "//"):
		for i := 2; i < len(s); i++ { // a backslash at the end of a line continues the comment
			if s[i] == '\n' && s[i-1] != '\\' && !strings.HasSuffix(s[:i], "\\\r") {
				return i
			}
		}
		return len(s)
	case strings.HasPrefix(s, "/*"):
		if i := strings.Index(s[2:], "*/"); i >= 0 {
			return i + 4
		}
		return len(s)
	case s[0] == '"' || s[0] == '\'':
		return quoted(s)
	case wordByte(s[0]):
		return word(s)
	}
	return 1
}

// quoted gives the length of a string or character, which ends with its line at the latest.
func quoted(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '\n':
			return i
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}

// word gives the length of a name or number. The quotes between a number's digits belong to it; a name that announces a
// raw string takes the string with it.
func word(s string) int {
	digits := s[0] >= '0' && s[0] <= '9'
	i := 1
	for i < len(s) && (wordByte(s[i]) || digits && s[i] == '\'' && i+1 < len(s) && wordByte(s[i+1])) {
		i++
	}
	if i < len(s) && s[i] == '"' {
		switch s[:i] {
		case "R", "LR", "uR", "UR", "u8R":
			open := strings.IndexByte(s[i:], '(')
			if open < 0 {
				return i
			}
			end := ")" + s[i+1:i+open] + `"`
			if n := strings.Index(s[i+open:], end); n >= 0 {
				return i + open + n + len(end)
			}
			return len(s)
		}
	}
	return i
}

func wordByte(b byte) bool {
	return b == '_' || b >= '0' && b <= '9' || b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b >= 0x80
}
