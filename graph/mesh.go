package graph

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// Bounds of a mesh.
const (
	MaxMeshAxes     = 8
	MaxParticipants = 1 << 16
)

// A Mesh arranges participants, each of which runs one program, on named axes: 8 participants as data=2, tensor=4.
// Ranks count row-major, the last axis fastest. The empty mesh is one participant.
type Mesh []MeshAxis

// MeshAxis is an axis of a mesh.
type MeshAxis struct {
	Name string
	Size int
}

// MeshAxes is a set of axes of a mesh: bit i stands for axis i.
type MeshAxes uint8

// ParseMesh reads a mesh as [Mesh.String] writes it: data=2,tensor=4.
func ParseMesh(s string) (Mesh, error) {
	var m Mesh
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		name, size, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(size)
		if !ok || err != nil {
			return nil, fmt.Errorf("mesh %q: want axes with their sizes, such as data=2,tensor=4", s)
		}
		if m = append(m, MeshAxis{name, n}); len(m) > MaxMeshAxes {
			break
		}
	}
	if err := m.Check(); err != nil {
		return nil, err
	}
	return m, nil
}

// Check reports names and sizes that a mesh cannot have.
func (m Mesh) Check() error {
	if len(m) > MaxMeshAxes {
		return fmt.Errorf("a mesh of %d axes: want at most %d", len(m), MaxMeshAxes)
	}
	all := 1
	for i, a := range m {
		switch {
		case !isBareName(a.Name):
			return fmt.Errorf("axis %q of a mesh: want a word that begins with a letter", a.Name)
		case slices.ContainsFunc(m[:i], func(b MeshAxis) bool { return a.Name == b.Name }):
			return fmt.Errorf("a mesh has two axes %q", a.Name)
		case a.Name == noAxis:
			return fmt.Errorf("an axis of a mesh cannot be named %s", noAxis)
		case a.Size < 1 || a.Size > MaxParticipants/all:
			return fmt.Errorf("axis %s=%d: want at least 1, and at most %d participants in all", a.Name, a.Size, MaxParticipants)
		}
		all *= a.Size
	}
	return nil
}

// String gives the axes with their sizes, as [ParseMesh] reads them.
func (m Mesh) String() string {
	var parts []string
	for _, a := range m {
		parts = append(parts, fmt.Sprintf("%s=%d", a.Name, a.Size))
	}
	return strings.Join(parts, ",")
}

// All is the set of all axes.
func (m Mesh) All() MeshAxes { return MeshAxes(1<<len(m) - 1) }

// Size is the number of participants.
func (m Mesh) Size() int { return m.Parts(m.All()) }

// Parts is the number of participants along the given axes.
func (m Mesh) Parts(axes MeshAxes) int {
	n := 1
	for i, a := range m {
		if axes.Has(i) {
			n *= a.Size
		}
	}
	return n
}

// Axes is the set that a text names, as [Mesh.Names] writes it.
func (m Mesh) Axes(names string) (MeshAxes, error) {
	var set MeshAxes
	for name := range strings.SplitSeq(names, "+") {
		i := slices.IndexFunc(m, func(a MeshAxis) bool { return a.Name == name })
		if i < 0 {
			return 0, fmt.Errorf("the mesh %q has no axis %q", m, name)
		}
		if set.Has(i) {
			return 0, fmt.Errorf("axis %q is named twice in %q", name, names)
		}
		set |= 1 << i
	}
	return set, nil
}

// Names joins the names of axes in the order of the mesh: data+tensor.
func (m Mesh) Names(axes MeshAxes) string {
	var names []string
	for i, a := range m {
		if axes.Has(i) {
			names = append(names, a.Name)
		}
	}
	return strings.Join(names, "+")
}

// Ranks lists the group of a participant along the given axes: those that differ from it in these axes alone, row-major.
// Place is the participant's own position in the list.
func (m Mesh) Ranks(axes MeshAxes, rank int) (ranks []int, place int) {
	base, stride, rest := 0, 1, rank
	strides := make([]int, len(m))
	for i := len(m) - 1; i >= 0; i-- {
		strides[i] = stride
		if !axes.Has(i) {
			base += rest % m[i].Size * stride
		}
		rest /= m[i].Size
		stride *= m[i].Size
	}
	ranks = []int{base}
	for i, a := range m {
		if !axes.Has(i) {
			continue
		}
		next := make([]int, 0, len(ranks)*a.Size)
		for _, r := range ranks {
			for k := range a.Size {
				next = append(next, r+k*strides[i])
			}
		}
		ranks = next
	}
	return ranks, slices.Index(ranks, rank)
}

// Has reports whether axis i is in the set.
func (a MeshAxes) Has(i int) bool { return a>>i&1 != 0 }

// Len is the number of axes in the set.
func (a MeshAxes) Len() int { return bits.OnesCount8(uint8(a)) }

// A Sharding says how the elements of a value are laid over a mesh: Split[i] are the axes along which axis i of the value is
// split into equal parts, the first axis of the mesh outermost. Along all other axes of the mesh every participant has the
// same elements. Along the axes Partial each participant has a term, and the value is the sum of all.
type Sharding struct {
	Given   bool // the sharding is stated; the zero Sharding is none
	Split   [MaxRank]MeshAxes
	Partial MeshAxes
}

// Microbatch is the first axis of a mesh that has it, which stands for the microbatches of a pipeline; see [fusec/passes/pipeline].
// What goes along it stays with a participant.
const Microbatch = "microbatch"

// Replicated is the sharding of a value that every participant has whole.
var Replicated = Sharding{Given: true}

// SplitAlong is the sharding of a value whose axes are split along the named axes of the mesh; "" or _ splits none.
func (m Mesh) SplitAlong(names ...string) (Sharding, error) {
	s := Replicated
	if len(names) > MaxRank {
		return s, fmt.Errorf("a sharding of %d axes: want at most %d", len(names), MaxRank)
	}
	for i, name := range names {
		if name == "" || name == noAxis {
			continue
		}
		var err error
		if s.Split[i], err = m.Axes(name); err != nil {
			return s, err
		}
	}
	return s, nil
}

// Over is the set of axes along which the value is split.
func (s Sharding) Over() MeshAxes {
	var all MeshAxes
	for _, a := range s.Split {
		all |= a
	}
	return all
}

// Check reports a sharding that a value of the given shape cannot have.
func (s Sharding) Check(m Mesh, of Shape) error {
	used := s.Partial
	for i, a := range s.Split {
		switch {
		case a == 0:
			continue
		case i >= of.Rank():
			return fmt.Errorf("axis %d is split, of a value of rank %d", i, of.Rank())
		case a&^m.All() != 0:
			return fmt.Errorf("axis %d is split along axes that the mesh %q does not have", i, m)
		case a&used != 0:
			return fmt.Errorf("axis %s of the mesh is used twice", m.Names(a&used))
		case of.At(i)%m.Parts(a) != 0:
			return fmt.Errorf("axis %d of %v is not a multiple of the %d participants of %s", i, of, m.Parts(a), m.Names(a))
		}
		used |= a
	}
	return nil
}

// Local is the shape of each participant's part.
func (s Sharding) Local(m Mesh, of Shape) Shape {
	for i := range of.Rank() {
		if s.Split[i] != 0 {
			of = of.With(i, of.At(i)/m.Parts(s.Split[i]))
		}
	}
	return of
}

// Whole is the shape of a value of which each participant has a part of the given shape.
func (s Sharding) Whole(m Mesh, part Shape) Shape {
	for i := range part.Rank() {
		if a := s.Split[i] & m.All(); a != 0 {
			part = part.With(i, part.At(i)*m.Parts(a))
		}
	}
	return part
}

// noAxis stands in the text form for an axis that is not split.
const noAxis = "_"

// Text gives the sharding of a value of some rank as [data,_], with " partial data" behind it where it is a sum.
func (s Sharding) Text(m Mesh, rank int) string {
	names := make([]string, rank)
	for i := range names {
		if names[i] = m.Names(s.Split[i]); names[i] == "" {
			names[i] = noAxis
		}
	}
	text := "[" + strings.Join(names, ",") + "]"
	if s.Partial != 0 {
		text += " partial " + m.Names(s.Partial)
	}
	return text
}

// Part is the part of a tensor that the participant of the given rank has.
func (s Sharding) Part(m Mesh, t *Tensor, rank int) (*Tensor, error) {
	if err := s.Check(m, t.Type.Shape); err != nil {
		return nil, err
	}
	part := NewTensor(t.Type.Reshaped(s.Local(m, t.Type.Shape)))
	return part, s.Take(m, t, part, rank)
}

// Take writes the part of a whole tensor that the participant of the given rank has into part.
func (s Sharding) Take(m Mesh, whole, part *Tensor, rank int) error {
	if err := s.fits(m, whole, part); err != nil {
		return err
	}
	if s.Over() == 0 {
		part.CopyFrom(whole)
		return nil
	}
	to, from := part.Bytes(), whole.Bytes()
	s.rows(m, whole.Type, rank, func(local, at, n int) { copy(to[local:local+n], from[at:]) })
	return nil
}

// Join writes a participant's part into its place of the whole tensor.
func (s Sharding) Join(m Mesh, whole, part *Tensor, rank int) error {
	if err := s.fits(m, whole, part); err != nil {
		return err
	}
	if s.Over() == 0 {
		whole.CopyFrom(part)
		return nil
	}
	to, from := whole.Bytes(), part.Bytes()
	s.rows(m, whole.Type, rank, func(local, at, n int) { copy(to[at:at+n], from[local:]) })
	return nil
}

// fits checks that a tensor may be a part of another.
func (s Sharding) fits(m Mesh, whole, part *Tensor) error {
	if err := s.Check(m, whole.Type.Shape); err != nil {
		return err
	}
	if want := whole.Type.Reshaped(s.Local(m, whole.Type.Shape)); part.Type != want {
		return fmt.Errorf("the part of a value of type %v is %v, not %v", whole.Type, part.Type, want)
	}
	if s.Over() != 0 && whole.Type.DType.IsStored() {
		return fmt.Errorf("values of %v, stored in few bits, are not split", whole.Type.DType)
	}
	return nil
}

// rows calls f for each row of a part: where it begins in the part and in the whole value, and its length, in bytes.
func (s Sharding) rows(m Mesh, of Type, rank int, f func(local, whole, n int)) {
	local, strides, size := s.Local(m, of.Shape), of.Shape.Strides(), of.DType.Size()
	at, begin := s.place(m, local, rank), 0
	for i, stride := range strides {
		begin += at[i] * stride
	}
	rows(local, local.Strides(), strides, 0, begin, func(i, j, n int) { f(i*size, j*size, n*size) })
}

// checkSharding reports a sharding that a node cannot have: a source alone has one, and the others follow.
func (n *Node) checkSharding(g *Graph) error {
	s := n.Type.Shape
	if g.Parts {
		s = n.Sharding.Whole(g.Mesh, s)
	}
	switch {
	case !IsSource(n.Op):
		return fmt.Errorf("a split is stated of inputs, parameters and states; those of other values follow")
	case n.Type.DType.IsStored() && n.Sharding.Over() != 0:
		return fmt.Errorf("values of %v, stored in few bits, are not split", n.Type.DType)
	case n.Sharding.Partial != 0:
		return fmt.Errorf("a source is no partial sum")
	}
	return n.Sharding.Check(g.Mesh, s)
}

// split reads the sharding of a source behind its type: split [data,_].
func (p *parser) split(sc *scope, t *nodeText) error {
	at := p.advance()
	if err := p.since(3, at, "a split"); err != nil {
		return err
	}
	if !p.tok.is("[") {
		return p.expected("a list such as [data,_]")
	}
	names, err := p.words("an axis of the mesh or " + noAxis)
	if err != nil {
		return err
	}
	if t.sharding, err = sc.g.Mesh.SplitAlong(names...); err != nil {
		return p.fail(at, "%w", err)
	}
	if len(names) != t.typ.Shape.Rank() {
		return p.fail(at, "a split of %d axes, of a value of type %v", len(names), t.typ)
	}
	n := Node{Op: t.info.Proto, Type: t.typ, Sharding: t.sharding}
	if err := n.checkSharding(sc.g); err != nil {
		return p.fail(at, "%w", err)
	}
	return nil
}

// mesh reads the statement of a mesh: mesh data=2 tensor=4.
func (p *parser) mesh(sc *scope) error {
	at := p.advance()
	if err := p.since(3, at, at.text); err != nil {
		return err
	}
	switch {
	case sc.depth > 0:
		return p.fail(at, "a fusion's body has no mesh")
	case len(sc.g.Mesh) > 0:
		return p.fail(at, "a second mesh")
	case len(sc.g.Nodes) > 0:
		return p.fail(at, "the mesh comes before the nodes")
	}
	var m Mesh
	for p.tok.kind == tokenWord && len(m) <= MaxMeshAxes {
		if p.tok.text == keywordParts && !p.next().is("=") && len(m) > 0 {
			p.advance()
			sc.g.Parts = true
			break
		}
		a := MeshAxis{Name: p.advance().text}
		if err := p.want("="); err != nil {
			return err
		}
		n, err := strconv.Atoi(p.tok.text)
		if p.tok.kind != tokenWord || err != nil {
			return p.expected("the number of participants along " + a.Name)
		}
		p.advance()
		a.Size = n
		m = append(m, a)
	}
	if len(m) == 0 {
		return p.expected("an axis with its size, such as data=2")
	}
	if err := m.Check(); err != nil {
		return p.fail(at, "%w", err)
	}
	sc.g.Mesh = m
	return nil
}
