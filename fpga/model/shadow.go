package model

import "fusec/fpga/isa"

// cell is the history of a word: its last writer, and each engine's last reader since, as numbers from one; 0 for none.
type cell struct {
	writer  int32
	by      isa.Engine
	readers [isa.Engines]int32
}

// pageWords is how many cells are made at a time.
const pageWords = 1 << 10

// shadow has a cell for each word that was touched.
type shadow map[int64]*[pageWords]cell

// conflict is an earlier descriptor that has to be complete before a word can be touched.
type conflict struct {
	earlier int32 // its number
	engine  isa.Engine
	writes  bool
	at      int64
}

// touch records that descriptor id of an engine, a number from one that is unique for the engine, accesses words, and
// yields the conflicting descriptors until yield returns false. An engine's writes, and writes after its reads, are in
// order. But words that EXEC reads must be complete when it starts.
func (s shadow) touch(a Access, id int32, on isa.Engine, yield func(conflict) bool) bool {
	for at := a.At; at < a.At+a.N; at++ {
		key := int64(a.Memory)<<48 | at/pageWords
		page := s[key]
		if page == nil {
			page = new([pageWords]cell)
			s[key] = page
		}
		c := &page[at%pageWords]
		if c.writer > 0 && (c.writer != id || c.by != on) && (c.by != on || !a.Writes) && !yield(conflict{c.writer,
			c.by, true, at}) {
			return false
		}
		if !a.Writes {
			c.readers[on] = id
			continue
		}
		for e, r := range c.readers {
			if r > 0 && isa.Engine(e) != on && !yield(conflict{r, isa.Engine(e), false, at}) {
				return false
			}
		}
		*c = cell{writer: id, by: on}
	}
	return true
}
