package npy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"fusec/graph"
)

const magic = "\x93NUMPY"

// MaxHeader bounds the length of a header in bytes.
const MaxHeader = 1 << 16

// header is the description of the array in a file.
type header struct {
	descr   descr
	fortran bool
	shape   graph.Shape
}

// readHeader reads the magic number, the version and the dictionary.
func readHeader(r io.Reader) (h header, err error) {
	start := make([]byte, len(magic)+2)
	if _, err := io.ReadFull(r, start); err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return h, err // a folder, for instance
	} else if err != nil || string(start[:len(magic)]) != magic {
		return h, errors.New("this is not an .npy file")
	}
	major, minor := start[len(magic)], start[len(magic)+1]
	length := make([]byte, 4)
	switch major {
	case 1:
		length = length[:2]
	case 2, 3:
	default:
		return h, fmt.Errorf("version %d.%d is not supported", major, minor)
	}
	if _, err := io.ReadFull(r, length); err != nil {
		return h, truncated(err)
	}
	n := int(binary.LittleEndian.Uint16(length))
	if len(length) == 4 {
		n = int(binary.LittleEndian.Uint32(length))
	}
	if n > MaxHeader {
		return h, fmt.Errorf("header of %d bytes is larger than %d", n, MaxHeader)
	}
	text := make([]byte, n)
	if _, err := io.ReadFull(r, text); err != nil {
		return h, truncated(err)
	}
	h, err = parseHeader(string(text))
	if err != nil {
		return h, fmt.Errorf("header: %w", err)
	}
	return h, nil
}

// truncated names the usual reason for a file that ends too early.
func truncated(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return fmt.Errorf("the file is truncated: %w", io.ErrUnexpectedEOF)
	}
	return err
}

// Info is the description of the array in the header of a file.
type Info struct {
	Kind      string // of the elements, as NumPy abbreviates it: b1, f2, f4, f8, i1, i2, …, u8
	BigEndian bool
	Fortran   bool // the first index runs fastest
	Shape     graph.Shape
	Data      int64 // the byte at which the elements begin
	Bytes     int64 // size of all elements
}

// Stat reads only the header of a file. It does not check that all elements exist.
func Stat(r io.Reader) (Info, error) {
	c := &counter{r: r}
	h, err := readHeader(c)
	if err != nil {
		return Info{}, err
	}
	return Info{
		Kind: h.descr.kind, BigEndian: h.descr.size() > 1 && h.descr.order.Uint16([]byte{0, 1}) == 1, Fortran: h.fortran,
		Shape: h.shape, Data: c.n, Bytes: int64(h.shape.Elems()) * int64(h.descr.size()),
	}, nil
}

// counter counts what is read.
type counter struct {
	r io.Reader
	n int64
}

func (c *counter) Read(b []byte) (int, error) {
	n, err := c.r.Read(b)
	c.n += int64(n)
	return n, err
}

// scanner reads the Python literal that a header is: a dictionary of strings, booleans and tuples of integers.
type scanner struct{ rest string }

// accept skips white space and takes the token if it comes next.
func (s *scanner) accept(token string) bool {
	s.rest = strings.TrimLeft(s.rest, " \t\r\n")
	after, ok := strings.CutPrefix(s.rest, token)
	if ok {
		s.rest = after
	}
	return ok
}

// str reads a string, in which a header needs no escapes.
func (s *scanner) str() (string, error) {
	for _, q := range []string{"'", `"`} {
		if s.accept(q) {
			v, after, ok := strings.Cut(s.rest, q)
			if !ok {
				break
			}
			s.rest = after
			return v, nil
		}
	}
	return "", s.unexpected("a string")
}

func (s *scanner) integer() (int, error) {
	s.accept("")
	n := len(s.rest) - len(strings.TrimLeft(s.rest, "0123456789"))
	v, err := strconv.Atoi(s.rest[:n])
	if err != nil {
		return 0, s.unexpected("a dimension")
	}
	s.rest = s.rest[n:]
	s.accept("L") // as Python 2 wrote them
	return v, nil
}

func (s *scanner) unexpected(want string) error {
	if len(s.rest) > 20 {
		return fmt.Errorf("expected %s, found %q…", want, s.rest[:20])
	}
	return fmt.Errorf("expected %s, found %q", want, s.rest)
}

// shape reads a tuple of dimensions.
func (s *scanner) shape() (shape graph.Shape, err error) {
	if !s.accept("(") {
		return shape, s.unexpected("a tuple of dimensions")
	}
	var dims []int
	for !s.accept(")") {
		if len(dims) == graph.MaxRank {
			return shape, fmt.Errorf("more than %d axes", graph.MaxRank)
		}
		n, err := s.integer()
		if err != nil {
			return shape, err
		}
		dims = append(dims, n)
		if !s.accept(",") {
			if !s.accept(")") {
				return shape, s.unexpected("',' or ')'")
			}
			break
		}
	}
	shape = graph.ShapeOf(dims...)
	return shape, shape.Check()
}

func parseHeader(text string) (h header, err error) {
	s := &scanner{text}
	if !s.accept("{") {
		return h, s.unexpected("a dictionary")
	}
	seen := map[string]bool{}
	for !s.accept("}") {
		key, err := s.str()
		if err != nil {
			return h, err
		}
		if !s.accept(":") {
			return h, s.unexpected("':'")
		}
		if seen[key] {
			return h, fmt.Errorf("%q is given twice", key)
		}
		seen[key] = true
		switch key {
		case "descr":
			if s.accept("[") {
				return h, fmt.Errorf("structured arrays are not supported")
			}
			var v string
			if v, err = s.str(); err == nil {
				h.descr, err = parseDescr(v)
			}
		case "fortran_order":
			if h.fortran = s.accept("True"); !h.fortran && !s.accept("False") {
				err = s.unexpected("True or False")
			}
		case "shape":
			h.shape, err = s.shape()
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return h, err
		}
		if !s.accept(",") {
			if !s.accept("}") {
				return h, s.unexpected("',' or '}'")
			}
			break
		}
	}
	for _, key := range []string{"descr", "fortran_order", "shape"} {
		if !seen[key] {
			return h, fmt.Errorf("%q is missing", key)
		}
	}
	if s.accept(""); s.rest != "" {
		return h, s.unexpected("the end")
	}
	return h, nil
}

// appendHeader makes the start of a version 1.0 file, padded so that the data is aligned to 64 bytes.
func appendHeader(b []byte, t graph.Type) []byte {
	var shape strings.Builder
	for i := range t.Shape.Rank() {
		if i > 0 {
			shape.WriteByte(' ')
		}
		fmt.Fprintf(&shape, "%d,", t.Shape.At(i))
	}
	tuple := shape.String()
	if t.Shape.Rank() > 1 {
		tuple = strings.TrimSuffix(tuple, ",")
	}
	dict := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", descrs[t.DType], tuple)
	const fixed = len(magic) + 4
	pad := 63 - (fixed+len(dict))%64
	b = append(b, magic+"\x01\x00"...)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(dict)+pad+1))
	b = append(b, dict...)
	return append(b, strings.Repeat(" ", pad)+"\n"...)
}
