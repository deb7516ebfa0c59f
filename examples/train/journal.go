package train

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"

	"fusec/graph/atomicfile"
)

// Journal is a file of records, a JSON object on each line.
type Journal struct {
	f *os.File
}

// OpenJournal opens a journal at path, for a run that has done the given number of steps. An existing journal keeps the
// records of these steps, which are also returned, and loses the later ones. Any other file is refused and left
// unchanged.
func OpenJournal(path string, steps int) (*Journal, []Record, error) {
	kept, err := readJournal(path, steps)
	if err != nil {
		return nil, nil, err
	}
	err = atomicfile.Write(path, func(w io.Writer) error {
		for _, r := range kept {
			if err := json.NewEncoder(w).Encode(r); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("writing %s: %w", path, atomicfile.Cause(path, err))
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	return &Journal{f}, kept, err
}

// readJournal reads the records of the first steps; none if there is no file. An incomplete last line is ignored: the
// run that wrote it was killed.
func readJournal(path string, steps int) ([]Record, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, err // not a regular file, which may be endless; writing refuses it
	}
	var list []Record
	in := bufio.NewReader(f)
	for {
		line, err := in.ReadBytes('\n')
		if err == io.EOF && (len(line) == 0 || cutOff(line)) {
			return list, nil
		}
		var r Record
		if err == nil || err == io.EOF {
			err = json.Unmarshal(line, &r)
		}
		if err == nil && r.Step < 1 {
			err = errors.New("there is no step")
		}
		if err != nil {
			return nil, fmt.Errorf("%s:%d: this is no record of a step, and the file no journal of a run: %w", path,
				len(list)+1, err)
		}
		if r.Step > steps {
			return list, nil
		}
		list = append(list, r)
	}
}

// cutOff reports whether a line without an end can be the beginning of a record.
func cutOff(line []byte) bool {
	const begin = `{"step":`
	return strings.HasPrefix(begin, string(line)) || strings.HasPrefix(string(line), begin)
}

// Write appends a record.
func (j *Journal) Write(r Record) error { return json.NewEncoder(j.f).Encode(r) }

// Close ends the journal.
func (j *Journal) Close() error { return j.f.Close() }

// finite is nil, for JSON's null, if the number is not finite.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}

// bare is a record without its methods.
type bare Record

// MarshalJSON implements json.Marshaler: a loss that is not finite becomes null.
func (r Record) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Step int      `json:"step"` // repeated, so that it comes first
		Loss *float64 `json:"loss"`
		bare
	}{r.Step, finite(r.Loss), bare(r)})
}

// UnmarshalJSON implements json.Unmarshaler: a loss of null becomes NaN.
func (r *Record) UnmarshalJSON(src []byte) error {
	v := struct {
		*bare
		Loss *float64 `json:"loss"`
	}{bare: (*bare)(r)}
	if err := json.Unmarshal(src, &v); err != nil {
		return err
	}
	r.Loss = math.NaN()
	if v.Loss != nil {
		r.Loss = *v.Loss
	}
	return nil
}
