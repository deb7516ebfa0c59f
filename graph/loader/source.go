package loader

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"

	"fusec/graph"
	"fusec/graph/npy"
	"fusec/graph/safetensors"
)

// Source is one operand of every batch. Its rows come from
//
//   - an .npy file in C order: its first axis counts the rows;
//   - a tensor of a safetensors file: likewise;
//   - a file of bare little-endian values, if Raw is given: rows of shape Row, one after the other.
//
// The first two are distinguished by the file's content, not by its name.
type Source struct {
	Name   string // of the operand in a batch
	Path   string // of the file
	Tensor string // in a safetensors file; may be "" if it has only one

	Raw string // elements of a bare file: bool, u8, i8, u16, i16, f16, bf16, u32, i32, f32, u64, i64 or f64
	Row []int  // shape of a row of a bare file; empty for a single element

	// Window, if its Length is not 0, cuts rows out of one long sequence: a bare file, or an array with one axis.
	Window Window

	// DType is the element type in batches. The zero value keeps that of the file, or widens types that tensors lack:
	// f16 and bf16 to f32; u8, i8, u16 and i16 to i32; u32 and u64 to i64. All types convert to f32 or f64, and
	// integers and bool to any integer type, if each value fits.
	DType graph.DType
	// Scale and Offset replace a value that becomes f32 or f64 by value·Scale + Offset, computed in that type. A Scale
	// of 0 is 1.
	Scale, Offset float64
	// Limit, if not 0, bounds integers: each is in [0, Limit), as required of indices into Limit classes or words.
	Limit int64

	// Locate has batches say where the rows are in the file (Batch.Located), for a program that reads them by itself, instead of
	// reading them. They have to be in the file as in batches: integers without a Limit, floats without Scale and Offset, in
	// little-endian order and of the same type.
	Locate bool
}

// Window makes rows from a sequence of n elements, as for language models: row i is the Length elements from i·Stride
// on.
type Window struct {
	Length int
	Stride int // 0 means Length, without overlap
	// Targets, if not "", names a second operand: the row that begins one element later, which is to be predicted.
	Targets string
}

// names are the operands that the source makes.
func (s *Source) names() []string {
	if s.Window.Length != 0 && s.Window.Targets != "" {
		return []string{s.Name, s.Window.Targets}
	}
	return []string{s.Name}
}

// column is a source with the layout of its file.
type column struct {
	src  Source
	file *file

	begin  int64 // of row 0, in bytes
	stride int64 // from a row to the next, in bytes
	size   int64 // read for a row, in bytes
	elem   int64 // of an element, in bytes
	rows   int64

	kind   string // of the elements in the file
	dtype  graph.DType
	shape  graph.Shape // of a row in a batch
	elems  int         // of a row in a batch
	decode decoder
}

// array is the layout of a source's elements in its file.
type array struct {
	kind  string
	shape []int // the first axis counts
	begin int64
}

// newColumn finds the rows of a source.
func newColumn(src Source, f *file) (*column, error) {
	a, err := findArray(&src, f)
	if err != nil {
		return nil, err
	}
	c := &column{src: src, file: f, begin: a.begin, kind: a.kind, elem: int64(kinds[a.kind].size)}
	if len(a.shape) == 0 {
		return nil, errors.New("a single value has no rows")
	}
	if len(a.shape) > graph.MaxRank {
		return nil, fmt.Errorf("shape %v has more than %d axes", a.shape, graph.MaxRank)
	}
	c.rows = int64(a.shape[0])
	c.shape = graph.ShapeOf(a.shape[1:]...)
	if err := graph.ShapeOf(a.shape...).Check(); err != nil {
		return nil, err
	}
	c.size = int64(c.shape.Elems()) * c.elem
	c.stride = c.size
	if src.Window != (Window{}) {
		if err := c.window(); err != nil {
			return nil, err
		}
	}
	c.elems = c.shape.Elems()
	switch {
	case c.rows == 0:
		return nil, errors.New("there are no rows")
	case c.elems == 0:
		return nil, fmt.Errorf("rows of shape %v are empty", c.shape)
	}
	c.dtype = src.DType
	if c.dtype == graph.Invalid {
		c.dtype = kinds[c.kind].dtype
	}
	if c.decode, err = newDecoder(c.kind, c.dtype, &src); err != nil {
		return nil, err
	}
	if src.Locate && (c.kind != c.dtype.String() || c.dtype == graph.Bool || src.Limit != 0 || src.Offset != 0 ||
		src.Scale != 0 && src.Scale != 1) {
		return nil, fmt.Errorf("elements of %s are not located: batches have them as other %v, or check them", c.kind, c.dtype)
	}
	return c, nil
}

// window turns a sequence into its windows.
func (c *column) window() error {
	w := c.src.Window
	if c.shape.Rank() != 0 {
		return fmt.Errorf("windows need one axis; there are %d", 1+c.shape.Rank())
	}
	if w.Length < 1 || w.Stride < 0 {
		return fmt.Errorf("a window of length %d and stride %d: want a length of at least 1", w.Length, w.Stride)
	}
	if w.Stride == 0 {
		w.Stride = w.Length
	}
	n, need := c.rows, int64(w.Length)+int64(len(c.src.names())-1)
	if n < need {
		return fmt.Errorf("%d elements are too few for a window of %d", n, need)
	}
	c.rows = (n-need)/int64(w.Stride) + 1
	c.size, c.stride = need*c.elem, int64(w.Stride)*c.elem
	c.shape = graph.ShapeOf(w.Length)
	return nil
}

// batchType is the type of an operand in a batch of n rows.
func (c *column) batchType(n int) graph.Type {
	return graph.TypeOf(c.dtype, append([]int{n}, c.shape.Slice()...)...)
}

// findArray finds the array in the file, whose format it recognises by the first bytes.
func findArray(src *Source, f *file) (array, error) {
	if src.Raw != "" {
		if src.Tensor != "" {
			return array{}, fmt.Errorf("a file of bare %s has no tensor %q", src.Raw, src.Tensor)
		}
		return bare(src, f.size)
	}
	if len(src.Row) > 0 {
		return array{}, errors.New("the shape in Row is for a bare file: give the type of its elements in Raw")
	}
	start := make([]byte, len(magic))
	if _, err := f.f.ReadAt(start, 0); err != nil && err != io.EOF {
		return array{}, err
	}
	if !bytes.Equal(start, []byte(magic)) {
		return inSafetensors(src, f)
	}
	if src.Tensor != "" {
		return array{}, fmt.Errorf("an .npy file has no tensor %q", src.Tensor)
	}
	return inNPY(f)
}

// IsBare reports whether a file holds bare values: it begins neither as an .npy file nor as a safetensors file does.
func IsBare(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	start := make([]byte, 9)
	n, err := io.ReadFull(f, start)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return false, err
	}
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	header := n == len(start) && start[8] == '{' && binary.LittleEndian.Uint64(start) <= uint64(info.Size())
	return !header && !bytes.HasPrefix(start, []byte(magic)), nil
}

// magic begins every .npy file.
const magic = "\x93NUMPY"

// bare counts the rows of a file without a header.
func bare(src *Source, size int64) (array, error) {
	k, ok := kinds[src.Raw]
	if !ok {
		return array{}, fmt.Errorf("unknown element type %q: want one of %v", src.Raw, Kinds())
	}
	if len(src.Row) >= graph.MaxRank {
		return array{}, fmt.Errorf("rows of %d axes: want less than %d", len(src.Row), graph.MaxRank)
	}
	row := graph.ShapeOf(src.Row...)
	if err := row.Check(); err != nil {
		return array{}, err
	}
	bytes := int64(row.Elems()) * int64(k.size)
	if bytes == 0 || size%bytes != 0 {
		return array{}, fmt.Errorf("%d bytes are not a whole number of rows of %d bytes: is the file truncated?", size, bytes)
	}
	return array{src.Raw, append([]int{int(size / bytes)}, src.Row...), 0}, nil
}

// inNPY finds the array of an .npy file.
func inNPY(f *file) (array, error) {
	info, err := npy.Stat(io.NewSectionReader(f.f, 0, f.size))
	if err != nil {
		return array{}, err
	}
	switch left := f.size - info.Data; {
	case info.Fortran:
		return array{}, errors.New("the array is in Fortran order, so that its rows are scattered: save it in C order")
	case info.BigEndian:
		return array{}, errors.New("the elements are big-endian: save them as little-endian")
	case left < info.Bytes:
		return array{}, fmt.Errorf("the file is truncated: its header promises %d bytes of elements, %d are there",
			info.Bytes, left)
	case left > info.Bytes:
		return array{}, fmt.Errorf("there are %d bytes after the array that its header promises", left-info.Bytes)
	}
	return array{npyKinds[info.Kind], info.Shape.Slice(), info.Data}, nil
}

// inSafetensors finds a tensor of a safetensors file.
func inSafetensors(src *Source, f *file) (array, error) {
	r, err := safetensors.NewReader(f.f, f.size)
	if err != nil {
		return array{}, fmt.Errorf("%w (of a file of bare values, Source.Raw gives the type)", err)
	}
	list := r.Tensors()
	i := slices.IndexFunc(list, func(info safetensors.Info) bool { return info.Name == src.Tensor })
	switch {
	case len(list) == 0:
		return array{}, errors.New("it has no tensors")
	case src.Tensor == "" && len(list) == 1:
		i = 0
	case src.Tensor == "":
		return array{}, fmt.Errorf("it has %d tensors, such as %q: which? Source.Tensor names one", len(list), list[0].Name)
	case i < 0:
		return array{}, fmt.Errorf("it has no tensor %q", src.Tensor)
	}
	info := list[i]
	kind, ok := safetensorsKinds[info.DType]
	if !ok {
		return array{}, fmt.Errorf("tensor %q: elements of dtype %s cannot be read", info.Name, info.DType)
	}
	begin, _ := r.Place(info)
	return array{kind, info.Shape, begin}, nil
}

// maxSpan is the largest number of bytes that are read at once, unless a row has more.
const maxSpan = 4 << 20

// fill reads rows into the operands' buffers and returns the number of bytes read. Consecutive rows of the file are
// read at once.
func (c *column) fill(to []any, index []int64, buf *scratch) (bytes int64, err error) {
	c.file.announce(c, index, buf)
	for i := 0; i < len(index); {
		buf.list = c.extents(buf.list[:0], index[i:], c.file.together(buf, c.size))
		at, err := c.file.read(buf, buf.list)
		if err != nil {
			x := &buf.list[at]
			return bytes, fmt.Errorf("rows %d to %d: %w", index[i+x.first], index[i+x.last], err)
		}
		for k := range buf.list {
			x := &buf.list[k]
			if err := c.decodeRows(to, i+x.first, x.raw, index[i+x.first:i+x.last+1]); err != nil {
				return bytes, err
			}
			c.file.release(x.off, x.n)
			bytes += x.n
		}
		i += buf.list[len(buf.list)-1].last + 1
	}
	return bytes, nil
}

// locate adds the parts of the file that are rows of an operand: shift elements after where rows begin. Those that follow one
// another are one.
func (c *column) locate(parts []graph.FilePart, index []int64, shift int) []graph.FilePart {
	bytes := int64(c.elems) * c.elem
	for _, row := range index {
		at := c.begin + row*c.stride + int64(shift)*c.elem
		if n := len(parts); n > 0 && parts[n-1].Offset+parts[n-1].Bytes == at {
			parts[n-1].Bytes += bytes
			continue
		}
		parts = append(parts, graph.FilePart{Path: c.file.path, Offset: at, Bytes: bytes})
	}
	return parts
}

// An extent is a part of a file, with some rows of a batch.
type extent struct {
	first, last int // of the rows
	off, n      int64
	raw         []byte // its n bytes, once it is read
	// What is read for it, if several are read at the same time.
	begin int64
	buf   []byte
	got   int64
}

// extents adds the parts of the file that have the next rows: at most so many, of which several have at most maxSpan bytes
// together.
func (c *column) extents(list []extent, index []int64, most int) []extent {
	bytes := int64(0)
	for i := 0; i < len(index) && len(list) < most; {
		j := i + 1
		last := c.stride <= 2*c.size // else much data between two rows would be read unnecessarily
		for last && j < len(index) && index[j] == index[j-1]+1 && int64(j-i)*c.stride+c.size <= maxSpan {
			j++
		}
		x := extent{first: i, last: j - 1, off: c.begin + index[i]*c.stride, n: int64(j-i-1)*c.stride + c.size}
		if bytes += x.n; len(list) > 0 && bytes > maxSpan {
			break
		}
		list = append(list, x)
		i = j
	}
	return list
}

// decodeRows converts the rows in raw and stores them in the buffers from row i on.
func (c *column) decodeRows(to []any, i int, raw []byte, rows []int64) error {
	if c.stride == c.size && len(to) == 1 { // the rows are contiguous
		if bad := c.decode(to[0], i*c.elems, raw); bad >= 0 {
			return c.misfit(rows[bad/c.elems], bad%c.elems, raw[int64(bad)*c.elem:])
		}
		return nil
	}
	for r := range rows {
		row := raw[int64(r)*c.stride:]
		for shift := range to { // the targets begin one element after the inputs
			part := row[int64(shift)*c.elem:][:int64(c.elems)*c.elem]
			if bad := c.decode(to[shift], (i+r)*c.elems, part); bad >= 0 {
				return c.misfit(rows[r], bad+shift, part[int64(bad)*c.elem:])
			}
		}
	}
	return nil
}

// misfit is the error of an element that cannot be converted; raw begins with it.
func (c *column) misfit(row int64, elem int, raw []byte) error {
	want := c.dtype.String()
	switch {
	case c.kind == "bool":
		want = "bool, which is 0 or 1"
	case c.src.Limit > 0:
		want = fmt.Sprintf("[0,%d)", c.src.Limit)
	}
	return fmt.Errorf("row %d, element %d: the %s %s does not fit into %s",
		row, elem, c.kind, integerText(c.kind, raw), want)
}
