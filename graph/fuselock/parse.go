package fuselock

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"fusec/graph/trace"
)

// Parse reads a lock file. name is the file's, for errors, which also name the line.
func Parse(name string, src []byte) (*File, error) {
	p := &parser{file: &File{}}
	number := 0
	for line := range bytes.Lines(src) {
		number++
		p.rest = strings.TrimSpace(string(line))
		if p.rest == "" {
			continue
		}
		if err := p.line(); err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, number, err)
		}
	}
	if err := p.complete(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, number, err)
	}
	for i := range p.file.Sections {
		p.file.Sections[i].sort()
	}
	return p.file, nil
}

type parser struct {
	file      *File
	versioned bool
	given     []string // the numbers of the section that have been read
	names     int64    // of nodes and sources so far
	rest      string   // of the line
}

// line reads one line.
func (p *parser) line() error {
	word := p.word()
	if !p.versioned {
		v, err := p.count()
		if word != "fuselock" || err != nil {
			return fmt.Errorf("the file does not begin with \"fuselock %d\"", Version)
		}
		if v != Version {
			return fmt.Errorf(
				"the lock file is of version %d; this version of fusec reads version %d: remove it, and write it again with fusec lock", v,
				Version)
		}
		p.versioned = true
		return p.end()
	}
	if word == "target" {
		if err := p.complete(); err != nil {
			return err
		}
		s := Section{Target: p.word(), Precision: p.word()}
		switch {
		case s.Target == "" || s.Precision == "":
			return errors.New("want \"target NAME PRECISION\"")
		case p.file.Find(s.Target, s.Precision) != nil:
			return fmt.Errorf("target %s %s is there twice", s.Target, s.Precision)
		}
		p.file.Sections, p.given = append(p.file.Sections, s), nil
		return p.end()
	}
	if len(p.file.Sections) == 0 {
		return fmt.Errorf("%q before the first target", word)
	}
	s := &p.file.Sections[len(p.file.Sections)-1]
	var err error
	switch word {
	case "pattern":
		err = p.pattern(s)
	case "fusion":
		err = p.fusion(s)
	case "refused", "launches", "host", "traffic", "memory":
		if slices.Contains(p.given, word) {
			return fmt.Errorf("%q is there twice", word)
		}
		p.given = append(p.given, word)
		err = p.number(s, word)
	default:
		return fmt.Errorf("%q is not known", word)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", word, err)
	}
	return p.end()
}

// complete checks at its end that a section has all numbers.
func (p *parser) complete() error {
	if len(p.file.Sections) == 0 {
		return nil
	}
	for _, word := range []string{"launches", "host", "traffic", "memory"} {
		if s := p.file.Sections[len(p.file.Sections)-1]; !slices.Contains(p.given, word) {
			return fmt.Errorf("target %s %s has no %q", s.Target, s.Precision, word)
		}
	}
	return nil
}

// number reads a line of one value.
func (p *parser) number(s *Section, word string) (err error) {
	if word == "refused" {
		s.Refusal, err = p.quoted()
		return err
	}
	n, err := p.count()
	switch word {
	case "launches":
		s.Launches = int(n)
	case "host":
		s.Host = int(n)
	case "traffic":
		s.Traffic = n
	case "memory":
		s.Memory = n
	}
	return err
}

func (p *parser) pattern(s *Section) error {
	x := Pattern{Stage: p.word(), Name: p.word()}
	if x.Name == "" {
		return errors.New("want a stage and a name")
	}
	for _, f := range []struct {
		word string
		n    *int
	}{{"matched", &x.Matched}, {"missed", &x.Missed}} {
		if w := p.word(); w != f.word {
			return fmt.Errorf("want %q, found %q", f.word, w)
		}
		n, err := p.count()
		if err != nil {
			return err
		}
		*f.n = int(n)
	}
	if x.Matched > 0 {
		x.Numeric.Class = trace.Class(p.word())
		bound, err := strconv.ParseFloat(p.word(), 64)
		if !x.Numeric.Known() || err != nil || !(bound >= 0) {
			return errors.New("want exact, reassociated, transformed or approximate, and a bound of at least 0")
		}
		x.Numeric.Bound = bound
	}
	s.Patterns = append(s.Patterns, x)
	return nil
}

func (p *parser) fusion(s *Section) (err error) {
	var x Fusion
	head := p.word()
	kind, closed := strings.CutSuffix(head, ":")
	kind, phase, phased := strings.Cut(kind, "/")
	if x.Kind = kind; kind == "" || p.rest == "" {
		return errors.New("want a kind, and nodes after a colon")
	}
	if phased {
		if err := x.Phase.UnmarshalText([]byte(phase)); err != nil {
			return err
		}
	}
	if !closed {
		if strings.HasPrefix(p.rest, `"`) {
			if x.Name, err = p.quoted(); err != nil {
				return err
			}
		}
		if in, ok := strings.CutPrefix(p.rest, "in "); ok {
			p.rest = strings.TrimSpace(in)
			if x.Scope, err = p.quoted(); err != nil {
				return err
			}
		}
		var ok bool
		if p.rest, ok = strings.CutPrefix(p.rest, ":"); !ok {
			return errors.New("want a colon before the nodes")
		}
	}
	list := &x.Nodes
	for p.rest = strings.TrimSpace(p.rest); p.rest != ""; {
		if of, ok := strings.CutPrefix(p.rest, "of "); ok && list == &x.Nodes {
			list, p.rest = &x.Sources, strings.TrimSpace(of)
		}
		name, err := p.quoted()
		if err != nil {
			return err
		}
		n := int64(1)
		if times, ok := strings.CutPrefix(p.rest, "×"); ok && list == &x.Nodes {
			p.rest = times
			if n, err = p.count(); err != nil {
				return err
			}
		}
		if p.names += n; n < 1 || n > MaxNames || p.names > MaxNames {
			return fmt.Errorf("%d more names: want at least 1, and at most %d in a file", n, MaxNames)
		}
		*list = append(*list, slices.Repeat([]string{name}, int(n))...)
	}
	if len(x.Nodes) == 0 {
		return errors.New("it has no nodes")
	}
	slices.Sort(x.Nodes)
	slices.Sort(x.Sources)
	s.Fusions = append(s.Fusions, x)
	return nil
}

// word takes the next word of the line; it is empty at the end.
func (p *parser) word() string {
	w, rest, _ := strings.Cut(p.rest, " ")
	p.rest = strings.TrimSpace(rest)
	return w
}

// count takes a number.
func (p *parser) count() (int64, error) {
	w := p.word()
	n, err := strconv.ParseInt(w, 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("want a whole number of at least 0, found %q", w)
	}
	return n, nil
}

// quoted takes a name in quotation marks.
func (p *parser) quoted() (string, error) {
	q, err := strconv.QuotedPrefix(p.rest)
	if err != nil || q[0] != '"' {
		return "", fmt.Errorf("want a name in quotation marks at %.40q", p.rest)
	}
	p.rest = strings.TrimSpace(p.rest[len(q):])
	return strconv.Unquote(q)
}

// end refuses what is left of a line.
func (p *parser) end() error {
	if p.rest != "" {
		return fmt.Errorf("%.40q is too much", p.rest)
	}
	return nil
}
