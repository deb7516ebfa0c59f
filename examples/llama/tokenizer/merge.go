package tokenizer

import "container/heap"

// A joiner says which token two neighbours may become, and how soon: those of the least rank first.
type joiner interface {
	join(left, right int) (token int, rank float64, ok bool)
}

// merges are the pairs that a byte-pair encoding has learnt, in their order.
type merges map[[2]int32]merged

type merged struct{ token, rank int32 }

func (m merges) join(left, right int) (int, float64, bool) {
	to, ok := m[[2]int32{int32(left), int32(right)}]
	return int(to.token), float64(to.rank), ok
}

// scores join two tokens if their texts together are a token, those with the highest score first, as SentencePiece does.
type scores struct {
	t     *Tokenizer
	score []float32
}

func (s scores) join(left, right int) (int, float64, bool) {
	id, ok := s.t.ids[s.t.texts[left]+s.t.texts[right]]
	if !ok {
		return 0, 0, false
	}
	return id, -float64(s.score[id]), true
}

// A piece is part of a word, in a list.
type piece struct {
	token      int
	prev, next int // −1 for none
}

// A candidate is two pieces that can be joined.
type candidate struct {
	rank        float64
	at          int // the left piece
	left, right int // the tokens that they have if they are still there
	token       int
}

// candidates is a heap: the least rank first, of equal ones the leftmost.
type candidates []candidate

func (c candidates) Len() int { return len(c) }
func (c candidates) Less(i, j int) bool {
	return c[i].rank < c[j].rank || c[i].rank == c[j].rank && c[i].at < c[j].at
}
func (c candidates) Swap(i, j int) { c[i], c[j] = c[j], c[i] }
func (c *candidates) Push(x any)   { *c = append(*c, x.(candidate)) }
func (c *candidates) Pop() any {
	last := len(*c) - 1
	x := (*c)[last]
	*c = (*c)[:last]
	return x
}

// merge appends the tokens of a word.
func (t *Tokenizer) merge(tokens []int, word string) []int {
	if t.whole {
		if id, ok := t.ids[word]; ok {
			return append(tokens, id)
		}
	}
	list := t.pieces(word)
	var queue candidates
	consider := func(left int) {
		if left < 0 || list[left].next < 0 {
			return
		}
		a, b := list[left].token, list[list[left].next].token
		if token, rank, ok := t.join.join(a, b); ok {
			heap.Push(&queue, candidate{rank, left, a, b, token})
		}
	}
	for i := range list {
		consider(i)
	}
	for queue.Len() > 0 {
		c := heap.Pop(&queue).(candidate)
		left := &list[c.at]
		if left.token != c.left || left.next < 0 || list[left.next].token != c.right {
			continue // one of them has been joined since
		}
		gone := &list[left.next]
		left.token, left.next = c.token, gone.next
		gone.token = -1
		if left.next >= 0 {
			list[left.next].prev = c.at
		}
		consider(left.prev)
		consider(c.at)
	}
	for i := range list {
		if list[i].token >= 0 {
			tokens = append(tokens, list[i].token)
		}
	}
	return tokens
}

// pieces are the tokens of the characters of a word. One that has none is spelled by its bytes, or unknown.
func (t *Tokenizer) pieces(word string) []piece {
	var list []piece
	add := func(token int) {
		i := len(list)
		list = append(list, piece{token, i - 1, -1})
		if i > 0 {
			list[i-1].next = i
		}
	}
	unknown := false // the last one is
	for _, r := range word {
		c := string(r)
		if id, ok := t.ids[c]; ok {
			add(id)
			unknown = false
			continue
		}
		spelled := true
		for i := range len(c) {
			spelled = spelled && t.bytes[c[i]] >= 0
		}
		switch {
		case spelled:
			for i := range len(c) {
				add(t.bytes[c[i]])
			}
			unknown = false
		case t.unknown >= 0 && !(unknown && t.fuse):
			add(t.unknown)
			unknown = true
		}
	}
	return list
}
