package graph

import (
	"fmt"
	"strconv"
	"unicode/utf8"
)

// tokenKind is the kind of a token.
type tokenKind uint8

const (
	tokenEOF tokenKind = iota
	tokenEOL
	tokenWord
	tokenString // text is the value
	tokenID     // text is the digits
	tokenPunct  // = : @ , [ ] { }
	tokenBad    // text is the error
)

type token struct {
	kind      tokenKind
	text      string
	raw       string // as in the source
	line, col int    // from 1; columns count bytes
}

// is reports whether t is the punctuation mark or keyword s.
func (t token) is(s string) bool {
	return (t.kind == tokenPunct || t.kind == tokenWord) && t.text == s
}

// String describes the token in an error.
func (t token) String() string {
	switch t.kind {
	case tokenEOF:
		return "the end of the file"
	case tokenEOL:
		return "the end of the line"
	case tokenPunct:
		return "'" + t.text + "'"
	}
	const most = 40
	if len(t.raw) > most {
		return t.raw[:most] + "…"
	}
	return t.raw
}

// lexer splits the text form into tokens.
type lexer struct {
	src   string
	pos   int
	line  int
	start int // where the line begins
}

func (l *lexer) next() token {
	for l.pos < len(l.src) {
		c := l.src[l.pos]
		if c == '#' {
			for l.pos < len(l.src) && l.src[l.pos] != '\n' {
				l.pos++
			}
			continue
		}
		if c != ' ' && c != '\t' && c != '\r' {
			break
		}
		l.pos++
	}
	from := l.pos
	t := token{line: l.line, col: from - l.start + 1}
	if from == len(l.src) {
		return t
	}
	switch c := l.src[from]; c {
	case '\n':
		l.pos++
		l.line++
		l.start = l.pos
		t.kind = tokenEOL
		return t
	case '=', ':', '@', ',', '[', ']', '{', '}':
		l.pos++
		t.kind, t.text = tokenPunct, string(c)
	case '%':
		l.pos++
		for l.pos < len(l.src) && '0' <= l.src[l.pos] && l.src[l.pos] <= '9' {
			l.pos++
		}
		t.kind, t.text = tokenID, l.src[from+1:l.pos]
		if t.text == "" {
			t.kind, t.text = tokenBad, "expected digits after '%'"
		}
	case '"':
		t.kind, t.text = l.quoted()
	default:
		for l.pos < len(l.src) {
			r, size := utf8.DecodeRuneInString(l.src[l.pos:])
			if !isWordRune(r) {
				break
			}
			l.pos += size
		}
		t.kind, t.text = tokenWord, l.src[from:l.pos]
		if t.text == "" {
			r, size := utf8.DecodeRuneInString(l.src[l.pos:])
			l.pos += size
			t.kind, t.text = tokenBad, fmt.Sprintf("unexpected character %q", r)
		}
	}
	t.raw = l.src[from:l.pos]
	return t
}

// quoted reads a string in double quotes, with Go's escapes.
func (l *lexer) quoted() (tokenKind, string) {
	from := l.pos
	for l.pos++; l.pos < len(l.src) && l.src[l.pos] != '\n'; l.pos++ {
		switch l.src[l.pos] {
		case '\\':
			if l.pos+1 < len(l.src) && l.src[l.pos+1] != '\n' {
				l.pos++
			}
		case '"':
			l.pos++
			s, err := strconv.Unquote(l.src[from:l.pos])
			if err != nil {
				return tokenBad, "string with an unknown escape"
			}
			return tokenString, s
		}
	}
	return tokenBad, "string without an end"
}
