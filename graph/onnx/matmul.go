package onnx

import (
	"slices"
	"strings"

	"fusec/graph"
)

func init() {
	declare(
		operator{name: "MatMul", min: 2, max: 2, exact: true, build: func(c *call) []*value {
			return one(c.product(c.node(0), c.node(1), c.node(0).Type.DType))
		}},
		operator{name: "Gemm", min: 2, max: 3, exact: true, build: buildGemm, attrs: []attr{floatAttr("alpha", 1), floatAttr("beta", 1),
			intAttr("transA", 0), intAttr("transB", 0), {name: "broadcast", def: int64(0), until: 6}}},
		operator{name: "Einsum", min: 1, max: -1, build: buildEinsum, attrs: []attr{{name: "equation", def: required{""}}}},
		operator{name: "Det", min: 1, max: 1, build: buildDet},
	)
}

// product is NumPy's matmul with the result in an element type. Products of integers are computed in f64, which is exact
// up to 2⁵³.
func (c *call) product(x, y *graph.Node, to graph.DType) *graph.Node {
	if d := x.Type.DType; !d.IsReal() {
		return c.cast(c.product(c.cast(x, graph.F64), c.cast(y, graph.F64), graph.F64), to)
	}
	rx, ry := x.Type.Shape.Rank(), y.Type.Shape.Rank()
	if rx == 0 || ry == 0 {
		c.refuse("a product of %v and %v", x.Type, y.Type)
	}
	if rx == 1 {
		x = c.reshape(x, 1, x.Type.Shape.At(0))
	}
	if ry == 1 {
		y = c.reshape(y, y.Type.Shape.At(0), 1)
	}
	z := c.cast(c.matmul(x, y, false, false), to)
	if rx > 1 && ry > 1 {
		return z
	}
	d := dims(z)
	if ry == 1 {
		d = d[:len(d)-1]
	}
	if rx == 1 {
		d = slices.Delete(d, len(d)-1-min(ry-1, 1), len(d)-min(ry-1, 1))
	}
	return c.reshape(z, d...)
}

// buildGemm is α·A·B + β·C.
func buildGemm(c *call) []*value {
	x, y := c.node(0), c.node(1)
	if x.Type.Shape.Rank() != 2 || y.Type.Shape.Rank() != 2 {
		c.refuse("a product of %v and %v, which are not matrices", x.Type, y.Type)
	}
	d := x.Type.DType
	if !d.IsReal() {
		x, y = c.cast(x, graph.F64), c.cast(y, graph.F64)
	}
	z := c.scaled(c.matmul(x, y, c.flag("transA"), c.flag("transB")), c.float("alpha"))
	if c.there(2) && c.float("beta") != 0 {
		bias := c.scaled(c.cast(c.node(2), z.Type.DType), c.float("beta"))
		z = c.plus(z, c.expand(bias, z.Type.Shape))
	}
	return one(c.cast(z, d))
}

// scaled is x·v.
func (c *call) scaled(x *graph.Node, v float64) *graph.Node {
	if v == 1 {
		return x
	}
	return c.with(graph.Mul, x, v)
}

// A term is an operand of an Einsum: a letter for each axis.
type term struct {
	x     *graph.Node
	names []rune
}

// buildEinsum contracts the operands from left to right, each contraction being one batched matrix product.
func buildEinsum(c *call) []*value {
	equation := strings.ReplaceAll(c.string("equation"), " ", "")
	left, right, explicit := strings.Cut(equation, "->")
	operands := strings.Split(left, ",")
	if len(operands) != len(c.args) {
		c.refuse("the equation %q has %d operands; there are %d", equation, len(operands), len(c.args))
	}
	d := c.node(0).Type.DType
	var terms []term
	count := map[rune]int{}
	wide := 0 // axes of the longest ellipsis
	for i, s := range operands {
		x := c.node(i)
		if !d.IsReal() {
			x = c.cast(x, graph.F64)
		}
		t := term{x, c.letters(s, x.Type.Shape.Rank())}
		for _, r := range t.names {
			if count[r]++; r < 0 {
				wide = max(wide, int(-r))
			}
		}
		terms = append(terms, t)
	}
	var out []rune
	for i := range wide {
		if !explicit || strings.Contains(right, "...") {
			out = append(out, rune(i-wide))
		}
	}
	if explicit {
		for i, part := range strings.Split(right, "...") {
			if i > 1 {
				c.refuse("the equation %q", equation)
			}
			if i == 0 {
				out = append([]rune(part), out...)
			} else {
				out = append(out, []rune(part)...)
			}
		}
	} else {
		var once []rune
		for r, n := range count {
			if n == 1 && r > 0 {
				once = append(once, r)
			}
		}
		slices.Sort(once)
		out = append(out, once...)
	}
	for i := range terms {
		terms[i] = c.diagonal(terms[i])
	}
	t := terms[0]
	for i := 1; i < len(terms); i++ {
		keep := slices.Clone(out)
		for _, u := range terms[i+1:] {
			keep = append(keep, u.names...)
		}
		t = c.contract(t, terms[i], keep)
	}
	t = c.summed(t, out)
	perm := make([]int, len(out))
	for i, r := range out {
		if perm[i] = slices.Index(t.names, r); perm[i] < 0 || len(out) != len(t.names) {
			c.refuse("the equation %q has %q in its result alone, or twice", equation, r)
		}
	}
	return one(c.cast(c.transpose(t.x, perm...), d))
}

// letters are the names of an operand's axes. Those of an ellipsis are −k, k being counted from its last axis.
func (c *call) letters(s string, rank int) []rune {
	before, after, dots := strings.Cut(s, "...")
	names := []rune(before)
	if dots {
		for i := rank - len([]rune(before)) - len([]rune(after)); i > 0; i-- {
			names = append(names, rune(-i))
		}
		names = append(names, []rune(after)...)
	}
	if len(names) != rank {
		c.refuse("%q for an operand of rank %d", s, rank)
	}
	return names
}

// diagonal takes the elements with equal indices of axes that have one name.
func (c *call) diagonal(t term) term {
	for i := 0; i < len(t.names); i++ {
		j := i + 1 + slices.Index(t.names[i+1:], t.names[i])
		if j == i {
			continue
		}
		n := t.x.Type.Shape.At(i)
		if t.x.Type.Shape.At(j) != n {
			c.refuse("axes of %d and %d elements have one name", n, t.x.Type.Shape.At(j))
		}
		same := c.binary(graph.Eq, c.counting(t.x.Type.Shape, i), c.counting(t.x.Type.Shape, j))
		t.x = c.reduce(graph.Sum, c.choose(same, t.x, c.scalar(t.x.Type.DType, 0)), false, j)
		t.names = slices.Delete(slices.Clone(t.names), j, j+1)
		i--
	}
	return t
}

// summed adds up the axes that are not to be kept.
func (c *call) summed(t term, keep []rune) term {
	var axes []int
	var names []rune
	for i, r := range t.names {
		if slices.Contains(keep, r) {
			names = append(names, r)
		} else {
			axes = append(axes, i)
		}
	}
	return term{c.reduce(graph.Sum, t.x, false, axes...), names}
}

// contract joins two terms. Axes in both are batches if they are kept, and else contracted.
func (c *call) contract(a, b term, keep []rune) term {
	a, b = c.summed(a, append(slices.Clone(keep), b.names...)), c.summed(b, append(slices.Clone(keep), a.names...))
	var batch, inner, rows, cols []rune
	for _, r := range a.names {
		switch in := slices.Contains(b.names, r); {
		case in && slices.Contains(keep, r):
			batch = append(batch, r)
		case in:
			inner = append(inner, r)
		default:
			rows = append(rows, r)
		}
	}
	for _, r := range b.names {
		if !slices.Contains(a.names, r) {
			cols = append(cols, r)
		}
	}
	// flat is t as [batch..., first, second], which the lists of names make up.
	sizes := map[rune]int{}
	for _, t := range []term{a, b} {
		for i, r := range t.names {
			if n := t.x.Type.Shape.At(i); sizes[r] == 0 || sizes[r] == 1 {
				sizes[r] = n
			} else if n != sizes[r] && n != 1 {
				c.refuse("an axis has %d elements in one operand and %d in another", sizes[r], n)
			}
		}
	}
	flat := func(t term, first, second []rune) *graph.Node {
		var perm []int
		to := make([]int, 0, len(batch)+2)
		for _, r := range batch {
			i := slices.Index(t.names, r)
			perm = append(perm, i)
			to = append(to, t.x.Type.Shape.At(i))
		}
		for _, part := range [][]rune{first, second} {
			n := 1
			for _, r := range part {
				perm = append(perm, slices.Index(t.names, r))
				n *= sizes[r]
			}
			to = append(to, n)
		}
		x := t.x
		for i, r := range t.names { // axes of size 1 that are contracted with longer ones
			if slices.Contains(inner, r) && x.Type.Shape.At(i) != sizes[r] {
				x = c.expand(x, x.Type.Shape.With(i, sizes[r]))
			}
		}
		return c.reshape(c.transpose(x, perm...), to...)
	}
	z := c.matmul(flat(a, rows, inner), flat(b, inner, cols), false, false)
	var to []int
	names := slices.Concat(batch, rows, cols)
	for _, r := range names {
		to = append(to, sizes[r])
	}
	return term{c.reshape(z, to...), names}
}

// buildDet is the determinant of matrices by elimination without exchanges of rows of small matrices: the sum over
// permutations, by minors.
func buildDet(c *call) []*value {
	x := c.node(0)
	s := x.Type.Shape
	r := s.Rank()
	if r < 2 || s.At(r-1) != s.At(r-2) || s.At(r-1) > 8 {
		c.refuse("it takes square matrices of up to 8 rows, not %v", s)
	}
	n := s.At(r - 1)
	to := s.Slice()[:r-2]
	at := func(i, j int) *graph.Node {
		return c.reshape(c.slice(c.slice(x, r-2, i, 1, 1), r-1, j, 1, 1), to...)
	}
	// minors[columns] is the determinant of the last rows, as many as there are columns, in these columns.
	minors := map[int]*graph.Node{0: c.scalar(x.Type.DType, 1)}
	for row := n - 1; row >= 0; row-- {
		next := map[int]*graph.Node{}
		for set := range 1 << n {
			count, sign := 0, 1.
			var sum *graph.Node
			for j := range n {
				if set>>j&1 == 0 {
					continue
				}
				count++
				m := minors[set&^(1<<j)]
				if m == nil {
					continue
				}
				p := c.scaled(c.mul(at(row, j), m), sign)
				if sign = -sign; sum == nil {
					sum = p
				} else {
					sum = c.plus(sum, p)
				}
			}
			if count == n-row {
				next[set] = sum
			}
		}
		minors = next
	}
	return one(c.expand(minors[1<<n-1], c.shape(to...)))
}
