package checkpoint

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/safetensors"
)

// Keys of the file's metadata. The user's keys are prefixed with metaPrefix.
const (
	formatKey   = "format"
	stepKey     = "step"
	seedKey     = "seed"
	positionKey = "position"
	checksumKey = "checksum"
	metaPrefix  = "meta/"

	// Of a checkpoint whose values are in other files: the checksum of each of these, by the participant that wrote it.
	partKey = "part/"
	// Of a part of a value: where it begins along each axis of the whole value, and the shape of that, by the name of the tensor.
	atPrefix    = "at/"
	wholePrefix = "whole/"
)

// The formats that are written and read: of a checkpoint in one file, of the file that lists those of several participants, and of
// these.
const (
	format        = "fusec.checkpoint/1"
	formatOfParts = "fusec.checkpoint/2"
	formatOfPart  = "fusec.checkpoint.part/1"
)

// ErrDamaged is wrapped by the error of [Load] for a file that is truncated or was changed after it was saved.
var ErrDamaged = errors.New("the checkpoint is damaged")

// Save writes a checkpoint to path atomically: if anything fails, or the process is killed, an existing file is
// unchanged. When Save returns nil, the file is on the disk. The same state gives the same bytes.
func Save(path string, s *State) error {
	if s == nil {
		return fmt.Errorf("saving the checkpoint %s: the state is nil", path)
	}
	err := atomicfile.Write(path, func(w io.Writer) error { return s.write(w) })
	if err != nil {
		return fmt.Errorf("saving the checkpoint %s: %w", path, atomicfile.Cause(path, err))
	}
	return nil
}

// The checksum is the CRC-32C of the file with zeros in place of the checksum. It detects accidents, not forgeries:
// every burst of up to 32 bits, and all but one in 2³² of other errors.
const (
	crcPrefix = "crc32c:"
	crcZeros  = "00000000"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *State) write(w io.Writer) error {
	tensors, meta, err := s.contents()
	if err != nil {
		return err
	}
	_, err = write(w, tensors, meta)
	return err
}

// write writes a file twice: first to compute the checksum, which it returns, then to w.
func write(w io.Writer, tensors []safetensors.Tensor, meta map[string]string) (checksum string, err error) {
	meta[checksumKey] = crcPrefix + crcZeros
	sum := crc32.New(castagnoli)
	if err := safetensors.Write(sum, tensors, meta); err != nil {
		return "", err
	}
	checksum = crcPrefix + fmt.Sprintf("%08x", sum.Sum32())
	meta[checksumKey] = checksum
	return checksum, safetensors.Write(w, tensors, meta)
}

// contents is the content of the file, with zeros for the checksum.
func (s *State) contents() (tensors []safetensors.Tensor, meta map[string]string, err error) {
	for _, r := range roles {
		for name, t := range *r.of(s) {
			if err := check(t); err != nil {
				return nil, nil, fmt.Errorf("%s %q: %w", r.name, name, err)
			}
			tensors = append(tensors, t.Safetensor(r.prefix+name))
		}
	}
	if s.Step < 0 || s.Position < 0 {
		return nil, nil, fmt.Errorf("step %d and position %d must not be negative", s.Step, s.Position)
	}
	meta = map[string]string{
		formatKey:   format,
		stepKey:     strconv.FormatInt(s.Step, 10),
		seedKey:     strconv.FormatUint(s.Seed, 10),
		positionKey: strconv.FormatInt(s.Position, 10),
	}
	if s.parts != nil {
		meta[formatKey] = formatOfParts
		for i, sum := range s.parts {
			meta[partKey+strconv.Itoa(i)] = sum
		}
	}
	for k, v := range s.Meta {
		meta[metaPrefix+k] = v
	}
	return tensors, meta, nil
}

// Load reads a checkpoint and checks every byte of it. Errors name the file, and wrap [ErrDamaged] if the file was
// truncated or changed.
func Load(path string) (*State, error) {
	s, err := load(path)
	if err == nil && s.parts != nil {
		err = s.join(path)
	}
	if err != nil {
		return nil, fmt.Errorf("loading the checkpoint %s: %w", path, atomicfile.Cause(path, err))
	}
	return s, nil
}

// load reads a file by itself. The values of several participants are in other files; see [State.join].
func load(path string) (s *State, err error) {
	err = open(path, func(f *os.File, size int64) error {
		s, err = read(f, size)
		return err
	})
	return s, err
}

// open calls f with a file and its size.
func open(path string, f func(file *os.File, size int64) error) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("it is not a regular file")
	}
	return f(file, info.Size())
}

// read reads a checkpoint of size bytes.
func read(r io.ReaderAt, size int64) (*State, error) {
	f, err := safetensors.NewReader(r, size)
	if err != nil {
		return nil, damaged(err)
	}
	meta := f.Metadata()
	if err := verify(r, size, meta[checksumKey]); err != nil {
		return nil, damaged(err)
	}
	// The checksum is right: from here on the file is known to be as written.
	if f := meta[formatKey]; f != format && f != formatOfParts {
		return nil, fmt.Errorf("its format is %q, not %q or %q", f, format, formatOfParts)
	}
	s := &State{}
	var errs [3]error
	s.Step, errs[0] = strconv.ParseInt(meta[stepKey], 10, 64)
	s.Seed, errs[1] = strconv.ParseUint(meta[seedKey], 10, 64)
	s.Position, errs[2] = strconv.ParseInt(meta[positionKey], 10, 64)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	s.Meta = map[string]string{}
	for k, v := range meta {
		if name, ok := strings.CutPrefix(k, metaPrefix); ok {
			s.Meta[name] = v
		}
	}
	if meta[formatKey] == formatOfParts {
		if s.parts, err = partsOf(meta); err != nil {
			return nil, err
		}
	}
	return s, s.readTensors(f)
}

// readTensors reads all tensors of the file.
func (s *State) readTensors(f *safetensors.Reader) error {
	for _, r := range roles {
		*r.of(s) = map[string]*graph.Tensor{}
	}
	for _, info := range f.Tensors() {
		r, name, t, err := typeOf(info)
		if err != nil {
			return err
		}
		if (*r.of(s))[name], err = tensorOf(f, info, t); err != nil {
			return err
		}
	}
	return nil
}

// typeOf is the role, the name and the type of a tensor in a file.
func typeOf(info safetensors.Info) (of *role, name string, t graph.Type, err error) {
	for i := range roles {
		if rest, ok := strings.CutPrefix(info.Name, roles[i].prefix); ok {
			of, name = &roles[i], rest
		}
	}
	switch {
	case of == nil:
		return nil, "", t, fmt.Errorf("tensor %q is neither a parameter nor state", info.Name)
	case len(info.Shape) > graph.MaxRank:
		return nil, "", t, fmt.Errorf("tensor %q has %d axes, more than %d", info.Name, len(info.Shape), graph.MaxRank)
	}
	d, ok := dtypes[info.DType]
	if !ok {
		return nil, "", t, fmt.Errorf("tensor %q has elements of dtype %s, which no checkpoint has", info.Name, info.DType)
	}
	t = graph.TypeOf(d, info.Shape...)
	if err := t.Shape.Check(); err != nil {
		return nil, "", t, fmt.Errorf("tensor %q: %w", info.Name, err)
	}
	return of, name, t, nil
}

// tensorOf reads a tensor of a file.
func tensorOf(f *safetensors.Reader, info safetensors.Info, t graph.Type) (*graph.Tensor, error) {
	data, err := f.Read(info.Name)
	if t.DType.Is16() {
		data, err = f.ReadBits(info.Name)
	}
	if err != nil {
		return nil, err
	}
	return &graph.Tensor{Type: t, Data: data}, nil
}

// dtypes are the dtypes of the file that store a tensor's elements without conversion.
var dtypes = map[string]graph.DType{}

func init() {
	for _, d := range graph.DTypes() {
		dtypes[strings.ToUpper(d.String())] = d
	}
}

// verify compares the file with its checksum.
func verify(r io.ReaderAt, size int64, checksum string) error {
	want, ok := strings.CutPrefix(checksum, crcPrefix)
	if !ok || len(want) != len(crcZeros) {
		return fmt.Errorf("it has no checksum: is it a checkpoint?")
	}
	var length [8]byte
	if _, err := r.ReadAt(length[:], 0); err != nil {
		return err
	}
	header := make([]byte, 8+int64(binary.LittleEndian.Uint64(length[:]))) // which NewReader has checked
	if _, err := r.ReadAt(header, 0); err != nil && err != io.EOF {
		return err
	}
	// In the header's JSON every quote inside a string is escaped: only the checksum itself matches this.
	entry := []byte(strconv.Quote(checksumKey) + ":" + `"` + crcPrefix)
	i := bytes.Index(header, entry)
	if i < 0 || !bytes.HasPrefix(header[i+len(entry):], []byte(want)) {
		return fmt.Errorf("its checksum is not where it was written")
	}
	copy(header[i+len(entry):], crcZeros)
	sum := crc32.New(castagnoli)
	sum.Write(header)
	rest := io.NewSectionReader(r, int64(len(header)), size-int64(len(header)))
	n, err := io.CopyBuffer(sum, rest, make([]byte, 1<<18))
	if err == nil && n < size-int64(len(header)) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	if got := fmt.Sprintf("%08x", sum.Sum32()); got != want {
		return fmt.Errorf("its checksum is %s, that of its contents %s", want, got)
	}
	return nil
}

// damaged wraps an error with ErrDamaged, unless the system could not read the file.
func damaged(err error) error {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}
