package checkpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/safetensors"
)

// Checkpoints of several participants. Each writes a file of the values, or the parts of values, that it has; of what several have
// alike each writes a part. When all these files are on the disk, participant 0 writes the file that lists them with their
// checksums. A checkpoint without that file is none: a run that is killed at any moment leaves the last whole one. All participants
// see one folder.

// A Group is the participants that write or read a checkpoint together. A Team of fusec/kernels/group is one.
type Group interface {
	// Place is this participant's number, from 0, and Size how many there are.
	Place() int
	Size() int
	// Gather gives each participant the bytes of all, joined in their order: x is as long on each, and y Size times as long.
	Gather(x, y []byte) error
}

// Pieces are what one participant has of the values of a checkpoint, by name.
type Pieces struct {
	Params, State map[string]graph.Piece
}

// SavePieces writes the next checkpoint together with the other participants, who all call it, each with its own pieces. The state
// has what all have alike: its step, seed, position and metadata, and tensors that no participant has in pieces. It returns when
// the checkpoint is on the disk; then participant 0 removes old ones, as [Dir.Save] does. If any participant fails, all get an
// error that names it, and the checkpoints from before stay.
func (d Dir) SavePieces(g Group, s *State, own Pieces) (path string, err error) {
	if s == nil {
		return "", fmt.Errorf("saving a checkpoint in %s: the state is nil", d.Path)
	}
	m := meeting{g}
	err = m.alike("the state of a checkpoint", s.says)
	var name string
	if err == nil {
		name, err = m.first(func() (string, error) {
			if err := os.MkdirAll(d.Path, 0o777); err != nil {
				return "", err
			}
			number, err := d.next()
			return filepath.Base(d.named(number, s.Step)), err
		})
	}
	if err != nil {
		return "", fmt.Errorf("saving a checkpoint in %s: %w", d.Path, atomicfile.Cause(d.Path, err))
	}
	path = filepath.Join(d.Path, name)
	if err := m.save(path, s, own); err != nil {
		return "", fmt.Errorf("saving the checkpoint %s: %w", path, atomicfile.Cause(path, err))
	}
	_, err = m.first(func() (string, error) { return "", d.prune() })
	return path, err
}

// LatestPieces finds the newest checkpoint that is intact, as [Dir.Latest] does, and fills the tensors of own from it, whatever the
// number and the parts of those who wrote it. All participants call it, and take the same checkpoint: the newest one of which all
// can read their pieces. Of a checkpoint of several a participant reads the headers of all files, and those whole that have
// elements of its pieces. The state that is found has no tensors. A checkpoint that has other values than own, or values of other
// types, is an error.
func (d Dir) LatestPieces(g Group, own Pieces) (*Found, error) {
	m := meeting{g}
	files, _, unseen := d.list()
	f := &Found{}
	for i := 0; ; i++ {
		name, err := m.first(func() (string, error) { // what the others see may change meanwhile
			if unseen != nil || i == len(files) {
				return "", unseen
			}
			return files[i].name, nil
		})
		switch {
		case err != nil:
			return nil, err
		case name == "" && len(f.Skipped) > 0:
			return nil, errors.Join(f.Skipped...)
		case name == "":
			return nil, fmt.Errorf("%s: %w", d.Path, ErrNone)
		}
		f.Path = filepath.Join(d.Path, name)
		_, err = m.all(func() (string, error) {
			var err error
			if f.State, err = load(f.Path); err == nil {
				err = f.fill(f.Path, own)
			}
			return "", err
		})
		if err == nil {
			f.Params, f.State.State, f.parts = nil, nil, nil
			return f, nil
		}
		err = fmt.Errorf("loading the checkpoint %s: %w", f.Path, atomicfile.Cause(f.Path, err))
		if !errors.Is(err, ErrDamaged) {
			return nil, err
		}
		f.Skipped = append(f.Skipped, err)
	}
}

// says is what participants are to have alike, without the tensors.
func (s *State) says() (string, error) {
	h := fnv.New64a()
	for _, k := range slices.Sorted(maps.Keys(s.Meta)) {
		fmt.Fprintf(h, "%q%q", k, s.Meta[k])
	}
	if s.Step < 0 || s.Position < 0 {
		return "", fmt.Errorf("step %d and position %d must not be negative", s.Step, s.Position)
	}
	return fmt.Sprintf("step %d, seed %d, position %d, metadata %016x", s.Step, s.Seed, s.Position, h.Sum64()), nil
}

// meeting is what participants tell one another.
type meeting struct{ Group }

// message is the bytes that each says at once: how it went, and a text or its error.
const message = 512

const (
	went = iota
	failed
	failedDamaged // with [ErrDamaged]
)

// unheard is the error of a participant that does not know how it went for the others.
type unheard struct{ error }

// Unwrap is why.
func (u unheard) Unwrap() error { return u.error }

// all has each participant call f, and gives the texts of all, which are short. An error of any is that of all.
func (m meeting) all(f func() (string, error)) ([]string, error) {
	text, failure := f()
	x, y := make([]byte, message), make([]byte, message*m.Size())
	if failure != nil {
		x[0], text = failed, failure.Error()
		if errors.Is(failure, ErrDamaged) {
			x[0] = failedDamaged
		}
	}
	binary.LittleEndian.PutUint16(x[1:], uint16(copy(x[3:], text)))
	if err := m.Gather(x, y); err != nil {
		return nil, unheard{errors.Join(failure, err)}
	}
	texts := make([]string, m.Size())
	for i := range texts {
		x := y[i*message:][:message]
		texts[i] = string(x[3:][:min(int(binary.LittleEndian.Uint16(x[1:])), message-3)])
		switch {
		case x[0] == went:
		case i == m.Place():
			return nil, failure
		case x[0] == failedDamaged:
			return nil, fmt.Errorf("participant %d: %w: %s", i, ErrDamaged, texts[i])
		default:
			return nil, fmt.Errorf("participant %d: %s", i, texts[i])
		}
	}
	return texts, nil
}

// first has participant 0 call f, and gives all its text.
func (m meeting) first(f func() (string, error)) (string, error) {
	all, err := m.all(func() (string, error) {
		if m.Place() != 0 {
			return "", nil
		}
		return f()
	})
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// alike has each participant call f, and fails if they get different texts.
func (m meeting) alike(what string, f func() (string, error)) error {
	all, err := m.all(f)
	if err != nil {
		return err
	}
	for i, text := range all {
		if text != all[0] {
			return fmt.Errorf("participants 0 and %d differ in %s: %s, and %s", i, what, all[0], text)
		}
	}
	return nil
}

// partPath is the file of a participant.
func partPath(path string, place, size int) string {
	return fmt.Sprintf("%s.part-%d-of-%d%s", strings.TrimSuffix(path, extension), place, size, extension)
}

// save writes the participant's part, and as the first one the file that lists all.
func (m meeting) save(path string, s *State, own Pieces) error {
	mine := partPath(path, m.Place(), m.Size())
	sums, err := m.all(func() (string, error) { return m.savePart(mine, s, own) })
	if err == nil {
		_, err = m.first(func() (string, error) {
			list := *s
			list.Params, list.State, list.parts = nil, nil, sums
			return "", atomicfile.Write(path, func(w io.Writer) error { return list.write(w) })
		})
	}
	if err != nil && !errors.As(err, new(unheard)) {
		os.Remove(mine) // which nothing lists
	}
	return err
}

// savePart writes what the participant has to write, and returns the checksum.
func (m meeting) savePart(path string, s *State, own Pieces) (sum string, err error) {
	var tensors []safetensors.Tensor
	meta := map[string]string{formatKey: formatOfPart}
	for _, r := range roles {
		pieces := maps.Clone(r.pieces(&own))
		if pieces == nil {
			pieces = map[string]graph.Piece{}
		}
		for name, t := range *r.of(s) {
			if _, twice := pieces[name]; twice {
				return "", fmt.Errorf("%s %q is given twice, whole and as a piece", r.name, name)
			}
			if err := check(t); err != nil {
				return "", fmt.Errorf("%s %q: %w", r.name, name, err)
			}
			pieces[name] = graph.Piece{Tensor: t, Whole: t.Type.Shape, Copy: m.Place(), Copies: m.Size()}
		}
		for i, name := range slices.Sorted(maps.Keys(pieces)) {
			p, err := share(pieces[name], i)
			switch {
			case err != nil:
				return "", fmt.Errorf("%s %q: %w", r.name, name, err)
			case p.Tensor == nil:
				continue
			}
			key := r.prefix + name
			tensors = append(tensors, p.Safetensor(key))
			meta[atPrefix+key] = numbers(p.At[:p.Whole.Rank()])
			meta[wholePrefix+key] = numbers(p.Whole.Slice())
		}
	}
	err = atomicfile.Write(path, func(w io.Writer) error {
		sum, err = write(w, tensors, meta)
		return err
	})
	return sum, err
}

// leastShare is how many bytes of a piece that several have are worth a cut.
const leastShare = 1 << 16

// share is the part of a piece that this participant writes, of which others have copies: some rows of a large one. Of small ones
// each participant writes some whole; i is the number of the piece.
func share(p graph.Piece, i int) (graph.Piece, error) {
	if p.Tensor == nil {
		return p, errors.New("the tensor is nil")
	}
	if err := errors.Join(check(p.Tensor), p.Check()); err != nil {
		return p, err
	}
	if p.Copies < 1 || p.Copy < 0 || p.Copy >= p.Copies {
		return p, fmt.Errorf("copy %d of %d", p.Copy, p.Copies)
	}
	s := p.Type.Shape
	if s.Rank() == 0 || s.At(0) < p.Copies || p.Type.Bytes() < leastShare*int64(p.Copies) || p.Type.DType.IsStored() {
		if i%p.Copies != p.Copy {
			p.Tensor = nil
		}
		return p, nil
	}
	first, end := p.Copy*s.At(0)/p.Copies, (p.Copy+1)*s.At(0)/p.Copies
	row := s.Elems() / s.At(0) * p.Type.DType.Size()
	p.Tensor = graph.TensorAt(p.Bytes()[first*row:end*row], p.Type.Reshaped(s.With(0, end-first)))
	p.At[0] += first
	return p, nil
}

func numbers(list []int) string {
	var b strings.Builder
	for i, n := range list {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}

// parseNumbers reads so many numbers.
func parseNumbers(s string, n int) ([]int, error) {
	if n == 0 && s == "" {
		return nil, nil
	}
	words := strings.SplitN(s, ",", n+1)
	if len(words) != n {
		return nil, fmt.Errorf("%q is not a list of %d numbers", s, n)
	}
	list := make([]int, n)
	for i, w := range words {
		v, err := strconv.Atoi(w)
		if err != nil || v < 0 {
			return nil, fmt.Errorf("%q is not a list of %d numbers", s, n)
		}
		list[i] = v
	}
	return list, nil
}

// partsOf are the checksums of the files that a file lists.
func partsOf(meta map[string]string) ([]string, error) {
	parts := []string{}
	for {
		sum, ok := meta[partKey+strconv.Itoa(len(parts))]
		if !ok {
			break
		}
		parts = append(parts, sum)
	}
	if len(parts) == 0 {
		return nil, errors.New("it lists no parts")
	}
	return parts, nil
}

// box is a tensor of a file: a part of a value, whose elements are not read yet.
type box struct {
	graph.Piece
	file int
	info safetensors.Info
}

// boxes are the parts of all values in the files of a checkpoint, by key: param/NAME or state/NAME.
type boxes map[string][]box

// part calls f with the reader of one of the checkpoint's files, of which each byte is compared with its checksum if whole.
func (s *State) part(path string, i int, whole bool, f func(r *safetensors.Reader) error) error {
	name := partPath(path, i, len(s.parts))
	err := open(name, func(file *os.File, size int64) error {
		r, err := safetensors.NewReader(file, size)
		if err != nil {
			return damaged(err)
		}
		meta := r.Metadata()
		if whole {
			if err := verify(file, size, meta[checksumKey]); err != nil {
				return damaged(err)
			}
		}
		switch {
		case meta[checksumKey] != s.parts[i]:
			return damaged(fmt.Errorf("its checksum is %q, and %q is listed", meta[checksumKey], s.parts[i]))
		case meta[formatKey] != formatOfPart:
			return fmt.Errorf("its format is %q, not %q", meta[formatKey], formatOfPart)
		}
		return f(r)
	})
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrNotExist):
		err = fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return fmt.Errorf("%s: %w", filepath.Base(name), err)
}

// boxes reads where the parts of values lie, and checks that they make up whole values. No value is larger than what the files
// hold of it.
func (s *State) boxes(path string) (boxes, error) {
	all := boxes{}
	for i := range s.parts {
		err := s.part(path, i, false, func(r *safetensors.Reader) error {
			for _, info := range r.Tensors() {
				b, err := boxOf(info, i, r.Metadata())
				if err != nil {
					return fmt.Errorf("tensor %q: %w", info.Name, err)
				}
				all[info.Name] = append(all[info.Name], b)
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	for name, list := range all {
		elems := 0
		for i, b := range list {
			if b.Whole != list[0].Whole || b.Type.DType != list[0].Type.DType {
				return nil, fmt.Errorf("tensor %q is of several types", name)
			}
			for _, other := range list[:i] {
				if b.Common(other.Piece) > 0 {
					return nil, fmt.Errorf("parts %d and %d have the same elements of tensor %q", other.file, b.file, name)
				}
			}
			elems += b.Type.Shape.Elems()
		}
		if want := list[0].Whole.Elems(); elems != want {
			return nil, fmt.Errorf("the parts have %d elements of tensor %q, not %d", elems, name, want)
		}
	}
	return all, nil
}

func boxOf(info safetensors.Info, file int, meta map[string]string) (b box, err error) {
	_, _, t, err := typeOf(info)
	if err != nil {
		return b, err
	}
	rank := t.Shape.Rank()
	at, err1 := parseNumbers(meta[atPrefix+info.Name], rank)
	whole, err2 := parseNumbers(meta[wholePrefix+info.Name], rank)
	if err := errors.Join(err1, err2); err != nil {
		return b, err
	}
	b = box{graph.Piece{Tensor: &graph.Tensor{Type: t}, Whole: graph.ShapeOf(whole...)}, file, info}
	copy(b.At[:], at)
	return b, b.Check()
}

// read fills pieces of the values, by key, with what the files have. Each file is opened once, if any piece has elements of it.
func (s *State) read(path string, all boxes, pieces map[string]graph.Piece) error {
	for i := range s.parts {
		has := func(b box, p graph.Piece) bool { return b.file == i && b.Common(p) > 0 }
		wanted := false
		for key, p := range pieces {
			wanted = wanted || slices.ContainsFunc(all[key], func(b box) bool { return has(b, p) })
		}
		if !wanted {
			continue
		}
		err := s.part(path, i, true, func(r *safetensors.Reader) error {
			for key, p := range pieces {
				for _, b := range all[key] {
					if !has(b, p) {
						continue
					}
					var err error
					if b.Tensor, err = tensorOf(r, b.info, b.Type); err != nil {
						return err
					}
					if _, err := p.Fill(b.Piece); err != nil {
						return err
					}
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// join reads the whole values of a checkpoint in several files.
func (s *State) join(path string) error {
	all, err := s.boxes(path)
	if err != nil {
		return err
	}
	pieces := map[string]graph.Piece{}
	for key, list := range all {
		r, name, t, err := typeOf(list[0].info)
		if err != nil {
			return err
		}
		whole := graph.NewTensor(t.Reshaped(list[0].Whole))
		(*r.of(s))[name], pieces[key] = whole, graph.Piece{Tensor: whole, Whole: whole.Type.Shape}
	}
	if err := s.read(path, all, pieces); err != nil {
		return err
	}
	s.parts = nil
	return nil
}

// fill fills a participant's pieces from a checkpoint in one file or in several.
func (s *State) fill(path string, own Pieces) error {
	all := boxes{}
	if s.parts != nil {
		var err error
		if all, err = s.boxes(path); err != nil {
			return err
		}
	}
	pieces := map[string]graph.Piece{}
	var want [2]map[string]place
	have := State{Params: s.Params, State: s.State} // or what has their types
	for i, r := range roles {
		want[i] = map[string]place{}
		for name, p := range r.pieces(&own) {
			where := fmt.Sprintf("%s %q", r.name, name)
			if err := p.Check(); err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
			if err := check(p.Tensor); err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
			want[i][name], pieces[r.prefix+name] = place{p.Type.Reshaped(p.Whole), where}, p
		}
	}
	if s.parts == nil {
		if err := have.compare(want); err != nil {
			return err
		}
		for _, r := range roles {
			for name, t := range *r.of(s) {
				if _, err := pieces[r.prefix+name].Fill(graph.Piece{Tensor: t, Whole: t.Type.Shape}); err != nil {
					return err
				}
			}
		}
		return nil
	}
	if err := all.compare(want); err != nil {
		return err
	}
	return s.read(path, all, pieces)
}

// compare lists the differences between what the files have and a model, as [State.compare] does.
func (all boxes) compare(want [2]map[string]place) error {
	var types State
	for _, r := range roles {
		*r.of(&types) = map[string]*graph.Tensor{}
	}
	for _, list := range all {
		r, name, t, err := typeOf(list[0].info)
		if err != nil {
			return err
		}
		(*r.of(&types))[name] = &graph.Tensor{Type: t.Reshaped(list[0].Whole)}
	}
	return types.differences(want, func(*graph.Tensor) error { return nil })
}
