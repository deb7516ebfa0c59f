package safetensors

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
)

// MaxHeader bounds the header's length in bytes, as the format's reference implementation does.
const MaxHeader = 100_000_000

// MaxRank bounds the number of axes of a tensor.
const MaxRank = 64

// metadataKey is the only key of the header that does not name a tensor.
const metadataKey = "__metadata__"

// Info describes a tensor in a file.
type Info struct {
	Name  string
	DType string // in the format's notation: F32, F64, I32, I64, BOOL, F16, BF16, …
	Shape []int
	Elems int

	begin, end int64 // in the data
}

// Reader reads tensors of one file.
type Reader struct {
	r        io.ReaderAt
	data     int64 // where the data begins
	infos    []Info
	byName   map[string]int
	metadata map[string]string
}

// NewReader reads and checks the header of a file of size bytes.
func NewReader(r io.ReaderAt, size int64) (*Reader, error) {
	var length [8]byte
	if size < 8 {
		return nil, fmt.Errorf("file of %d bytes is too short for a safetensors file", size)
	}
	if err := readFull(r, length[:], 0); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint64(length[:])
	if n > MaxHeader {
		return nil, fmt.Errorf("header of %d bytes is larger than %d; is this a safetensors file?", n, MaxHeader)
	}
	if int64(n) > size-8 {
		return nil, fmt.Errorf("header of %d bytes does not fit into a file of %d bytes; is the file truncated?", n, size)
	}
	header := make([]byte, n)
	if err := readFull(r, header, 8); err != nil {
		return nil, err
	}
	f := &Reader{r: r, data: 8 + int64(n), byName: map[string]int{}}
	if err := f.parse(header); err != nil {
		return nil, fmt.Errorf("header: %w", err)
	}
	if err := f.layout(size - f.data); err != nil {
		return nil, err
	}
	return f, nil
}

// readFull fills b from offset off; a shorter file is an error.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// parse reads the header's JSON key by key, so that a repeated key is detected.
func (f *Reader) parse(header []byte) error {
	d := json.NewDecoder(bytes.NewReader(header))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("is not a JSON object")
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return err
		}
		name := t.(string) // the decoder lets only strings be keys
		if name == metadataKey {
			if f.metadata != nil {
				return fmt.Errorf("%s is given twice", metadataKey)
			}
			f.metadata = map[string]string{}
			if err := d.Decode(&f.metadata); err != nil {
				return fmt.Errorf("%s: %w", metadataKey, err)
			}
			continue
		}
		if _, ok := f.byName[name]; ok {
			return fmt.Errorf("tensor %q is given twice", name)
		}
		info, err := parseInfo(d)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		info.Name = name
		f.byName[name] = len(f.infos)
		f.infos = append(f.infos, info)
	}
	if _, err := d.Token(); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("text after the JSON object")
	}
	return nil
}

// parseInfo reads and checks one tensor's entry.
func parseInfo(d *json.Decoder) (info Info, err error) {
	var entry struct {
		DType   *string `json:"dtype"`
		Shape   []int   `json:"shape"`
		Offsets []int64 `json:"data_offsets"`
	}
	if err := d.Decode(&entry); err != nil {
		return info, err
	}
	if entry.DType == nil || entry.Shape == nil || len(entry.Offsets) != 2 {
		return info, fmt.Errorf("needs dtype, shape and two data_offsets")
	}
	size, ok := dtypeBytes[*entry.DType]
	if !ok {
		return info, fmt.Errorf("unknown dtype %q", *entry.DType)
	}
	if len(entry.Shape) > MaxRank {
		return info, fmt.Errorf("has %d axes, more than %d", len(entry.Shape), MaxRank)
	}
	elems := 1
	for _, n := range entry.Shape {
		if n < 0 || n > 0 && elems > math.MaxInt/8/n {
			return info, fmt.Errorf("shape %v is not valid", entry.Shape)
		}
		elems *= max(n, 1)
	}
	if slices.Contains(entry.Shape, 0) {
		elems = 0
	}
	begin, end := entry.Offsets[0], entry.Offsets[1]
	if begin < 0 || end < begin || end-begin != int64(elems)*int64(size) {
		return info, fmt.Errorf("offsets %d to %d do not hold %s of shape %v", begin, end, *entry.DType, entry.Shape)
	}
	return Info{DType: *entry.DType, Shape: entry.Shape, Elems: elems, begin: begin, end: end}, nil
}

// layout checks that the tensors fill the data of size bytes, each byte once.
func (f *Reader) layout(size int64) error {
	order := slices.Clone(f.infos)
	slices.SortFunc(order, func(a, b Info) int {
		return cmp.Or(cmp.Compare(a.begin, b.begin), cmp.Compare(a.end, b.end), cmp.Compare(a.Name, b.Name))
	})
	at := int64(0)
	for _, info := range order {
		if info.begin != at {
			return fmt.Errorf("tensor %q begins at byte %d of the data, not at %d: there is a gap or an overlap", info.Name, info.begin, at)
		}
		at = info.end
	}
	if at != size {
		return fmt.Errorf("the tensors hold %d bytes, the file %d bytes of data; is the file truncated?", at, size)
	}
	return nil
}

// Tensors describes the tensors in the order of the header.
func (f *Reader) Tensors() []Info { return slices.Clone(f.infos) }

// Lookup describes the named tensor.
func (f *Reader) Lookup(name string) (Info, bool) {
	i, ok := f.byName[name]
	if !ok {
		return Info{}, false
	}
	return f.infos[i], true
}

// Place is the position of a tensor's elements in the file: size bytes from begin on, row-major and little-endian.
func (f *Reader) Place(info Info) (begin, size int64) {
	return f.data + info.begin, info.end - info.begin
}

// Metadata is the user's strings, or nil.
func (f *Reader) Metadata() map[string]string { return f.metadata }

// chunk is how many bytes are read or written at a time.
const chunk = 1 << 16

// Read reads the elements of the named tensor: a []float32 (of F32, and of F16 and BF16, which it holds exactly),
// []float64, []bool, or a slice of integers of the dtype's size and sign.
func (f *Reader) Read(name string) (any, error) {
	info, ok := f.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	data := newData(info.DType, info.Elems)
	if data == nil {
		return nil, fmt.Errorf("tensor %q: values of dtype %s cannot be read", name, info.DType)
	}
	return data, f.read(info, data)
}

// ReadBits reads the elements of the named tensor, of dtype F16 or BF16, without conversion.
func (f *Reader) ReadBits(name string) ([]uint16, error) {
	info, ok := f.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	if info.DType != "F16" && info.DType != "BF16" {
		return nil, fmt.Errorf("tensor %q: values of dtype %s have no 16 bits", name, info.DType)
	}
	data := make([]uint16, info.Elems)
	return data, f.read(info, data)
}

// ReadBytes reads the elements of the named tensor, of dtype F8_E4M3 or F8_E5M2, without conversion.
func (f *Reader) ReadBytes(name string) ([]uint8, error) {
	info, ok := f.Lookup(name)
	if !ok {
		return nil, fmt.Errorf("no tensor %q", name)
	}
	if info.DType != "F8_E4M3" && info.DType != "F8_E5M2" {
		return nil, fmt.Errorf("tensor %q: values of dtype %s are no 8-bit floats", name, info.DType)
	}
	data := make([]uint8, info.Elems)
	return data, f.read(info, data)
}

// read fills data, which has the length of the tensor.
func (f *Reader) read(info Info, data any) error {
	size := int64(dtypeBytes[info.DType])
	raw := make([]byte, min(chunk, info.end-info.begin))
	for off := info.begin; off < info.end; off += int64(len(raw)) {
		raw = raw[:min(int64(len(raw)), info.end-off)]
		if err := readFull(f.r, raw, f.data+off); err != nil {
			return fmt.Errorf("tensor %q: %w", info.Name, err)
		}
		if err := decode(data, int((off-info.begin)/size), info.DType, raw); err != nil {
			return fmt.Errorf("tensor %q: %w", info.Name, err)
		}
	}
	return nil
}

// File is a Reader of an open file.
type File struct {
	*Reader
	f *os.File
}

// Open opens a file and checks its header. Errors name the file.
func Open(path string) (*File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = fmt.Errorf("is not a regular file")
	}
	var r *Reader
	if err == nil {
		r, err = NewReader(f, fi.Size())
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &File{r, f}, nil
}

// Close closes the file.
func (f *File) Close() error { return f.f.Close() }
