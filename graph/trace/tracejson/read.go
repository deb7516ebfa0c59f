package tracejson

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// Write prints a trace on one line.
func (t *Trace) Write(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(t)
}

// maxRead is the size of the largest file that Read takes, in bytes.
const maxRead = 1 << 30

// Read reads what [Trace.Write] has written. It refuses other versions, and references to what is not there.
func Read(r io.Reader) (*Trace, error) {
	src, err := io.ReadAll(io.LimitReader(r, maxRead+1))
	if err != nil {
		return nil, err
	}
	if len(src) > maxRead {
		return nil, fmt.Errorf("more than %d bytes", maxRead)
	}
	var head struct {
		Schema string `json:"schema"`
	}
	if err := json.Unmarshal(src, &head); err != nil {
		return nil, fmt.Errorf("not the JSON of a trace: %w", err)
	}
	if head.Schema != Schema {
		return nil, fmt.Errorf(
			"the schema is %q; this version of fusec reads %q: write the file again with fusec dump --all --format json", head.Schema,
			Schema)
	}
	var t Trace
	if err := json.Unmarshal(src, &t); err != nil {
		return nil, fmt.Errorf("not the JSON of a trace: %w", err)
	}
	return &t, t.check()
}

// check refuses indices that are out of range, and a trace without a stage.
func (t *Trace) check() error {
	if len(t.Stages) == 0 {
		return errors.New("the trace has no stage")
	}
	c := checker{t: t}
	for _, list := range t.OriginLists {
		for _, o := range list {
			c.index("origins", o, len(t.Origins))
		}
	}
	for i, b := range t.Bodies {
		for j, n := range b.Nodes {
			c.node(&n)
			c.index("bodies, which come before the ones that hold them,", n.Body, i+1)
			for _, a := range n.Args {
				c.index("nodes of a body, operands first,", a, j)
			}
		}
		for _, o := range b.Outputs {
			c.index("nodes of a body", o, len(b.Nodes))
		}
	}
	for i := range t.Stages {
		s := &t.Stages[i]
		for j := range s.Changed {
			c.node(&s.Changed[j])
		}
		for _, m := range s.Matches {
			c.index("origin_lists", m.Origin, len(t.OriginLists)+1)
		}
		for _, n := range s.Notes {
			c.index("origin_lists", n.Origin, len(t.OriginLists)+1)
		}
		for _, m := range s.Misses {
			c.index("origin_lists", m.Origin, len(t.OriginLists)+1)
			for _, l := range m.Launches {
				if t.Program == nil {
					c.index("launches", l, 0)
				} else {
					c.index("launches", l, len(t.Program.Launches))
				}
			}
		}
	}
	if p := t.Program; p != nil {
		for _, l := range p.Launches {
			c.index("origin_lists", l.Origin, len(t.OriginLists)+1)
			c.index("sources", l.Source, len(t.Sources)+1)
			for _, list := range [][]int{l.Reads, l.Writes} {
				for _, b := range list {
					c.index("buffers", b, len(p.Buffers))
				}
			}
		}
	}
	return c.err
}

// checker keeps the first error.
type checker struct {
	t   *Trace
	err error
}

func (c *checker) index(table string, i, n int) {
	if c.err == nil && (i < 0 || i >= n) {
		c.err = fmt.Errorf("a trace refers to %d of its %s, of which there are %d", i, table, n)
	}
}

func (c *checker) node(n *Node) {
	c.index("origin_lists", n.Origin, len(c.t.OriginLists)+1)
	c.index("bodies", n.Body, len(c.t.Bodies)+1)
}
