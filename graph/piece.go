package graph

import "fmt"

// A Piece is a part of a value: the elements of a box, row-major, of a value of shape Whole. At is where the box begins.
type Piece struct {
	*Tensor
	Whole Shape
	At    [MaxRank]int
	// Several participants may have the same piece: Copies is how many, and Copy the number of this one among them, from 0.
	Copy, Copies int
}

// Piece is the part that the participant of a rank has, with the place of it.
func (s Sharding) Piece(m Mesh, part *Tensor, rank int) Piece {
	over := s.Over() & m.All()
	p := Piece{Tensor: part, Whole: s.Whole(m, part.Type.Shape), At: s.place(m, part.Type.Shape, rank)}
	p.Copies = m.Parts(m.All() &^ over)
	_, p.Copy = m.Ranks(m.All()&^over, rank)
	return p
}

// place is where the part of a participant begins, of which each has a box of the given shape.
func (s Sharding) place(m Mesh, part Shape, rank int) (at [MaxRank]int) {
	for i := range part.Rank() {
		if a := s.Split[i] & m.All(); a != 0 {
			_, place := m.Ranks(a, rank)
			at[i] = place * part.At(i)
		}
	}
	return at
}

// Check reports a piece that does not lie in its whole value.
func (p Piece) Check() error {
	if p.Tensor == nil {
		return fmt.Errorf("the piece has no tensor")
	}
	part := p.Type.Shape
	if err := p.Whole.Check(); err != nil {
		return err
	}
	if part.Rank() != p.Whole.Rank() {
		return fmt.Errorf("a piece of shape %v of a value of shape %v", part, p.Whole)
	}
	for i := range part.Rank() {
		if p.At[i] < 0 || part.At(i) < 0 || p.At[i] > p.Whole.At(i)-part.At(i) {
			return fmt.Errorf("a piece of shape %v, which begins at %d of axis %d, does not lie in a value of shape %v", part, p.At[i], i,
				p.Whole)
		}
	}
	if p.Type.DType.IsStored() && part != p.Whole {
		return fmt.Errorf("values of %v, stored in few bits, are not split", p.Type.DType)
	}
	return nil
}

// common is the box that two pieces of a value have both. It has no elements if they have none in common.
func (p Piece) common(q Piece) (box Shape, at [MaxRank]int) {
	box = p.Type.Shape
	for i := range box.Rank() {
		at[i] = max(p.At[i], q.At[i])
		end := min(p.At[i]+p.Type.Shape.At(i), q.At[i]+q.Type.Shape.At(i))
		box = box.With(i, max(end-at[i], 0))
	}
	return box, at
}

// Common is how many elements two pieces of a value have both.
func (p Piece) Common(q Piece) int {
	box, _ := p.common(q)
	return box.Elems()
}

// Fill copies what another piece of the same value has of this one, and returns how many elements these are.
func (p Piece) Fill(from Piece) (int, error) {
	switch {
	case p.Type.DType != from.Type.DType || p.Whole != from.Whole:
		return 0, fmt.Errorf("a piece of %v%v and one of %v%v are not of one value", p.Type.DType, p.Whole, from.Type.DType, from.Whole)
	case p.Type == from.Type && p.At == from.At:
		p.CopyFrom(from.Tensor)
		return p.Type.Shape.Elems(), nil
	}
	box, at := p.common(from)
	if box.Elems() == 0 {
		return 0, nil
	}
	x, y, size := p.Type.Shape.Strides(), from.Type.Shape.Strides(), p.Type.DType.Size()
	i, j := 0, 0
	for k := range box.Rank() {
		i += (at[k] - p.At[k]) * x[k]
		j += (at[k] - from.At[k]) * y[k]
	}
	to, source := p.Bytes(), from.Bytes()
	rows(box, x, y, i, j, func(i, j, n int) { copy(to[i*size:(i+n)*size], source[j*size:]) })
	return box.Elems(), nil
}

// rows calls f for each row of a box that lies in two tensors of the given strides, where it begins at elements i and j: where the
// row begins in each, and its length, in elements.
func rows(box Shape, x, y []int, i, j int, f func(i, j, n int)) {
	row, last, index := 1, box.Rank()-1, [MaxRank]int{}
	if last >= 0 {
		row = box.At(last)
	}
	for done := 0; done < box.Elems(); done += row {
		f(i, j, row)
		for k := last - 1; k >= 0; k-- {
			index[k]++
			i, j = i+x[k], j+y[k]
			if index[k] < box.At(k) {
				break
			}
			i, j = i-index[k]*x[k], j-index[k]*y[k]
			index[k] = 0
		}
	}
}
