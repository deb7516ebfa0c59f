package checkpoint

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"fusec/graph/atomicfile"
)

// Dir is the folder of a run's checkpoints. They are numbered in the order in which they were saved; the newest is
// determined by the number, not by the step, because a run may have been resumed from an older one. Only one run at a
// time may save in a folder. Any number may read.
type Dir struct {
	Path  string // made by the first Save if it is missing
	Keep  int    // how many of the newest are kept; 0 keeps all
	Every int64  // steps between two checkpoints; see Due
}

// ErrNone is the error of [Dir.Latest] for a folder that is missing or has no checkpoint, as at the start of a run.
var ErrNone = errors.New("there is no checkpoint")

// Found is a checkpoint of a folder.
type Found struct {
	*State
	Path string
	// Skipped has an error for each newer checkpoint that is damaged, with the file's name.
	Skipped []error
}

// Due reports whether a checkpoint is due after step steps.
func (d Dir) Due(step int64) bool { return d.Every > 0 && step > 0 && step%d.Every == 0 }

// Save writes the next checkpoint. Once it is on the disk, Save removes the checkpoints before the newest Keep, and
// temporary files of killed processes, but not files that another process is writing. If writing fails, nothing is
// removed. The path is that of the new file, or "" if it was not written. If both a path and an error are returned,
// removing failed.
func (d Dir) Save(s *State) (path string, err error) {
	if s == nil {
		return "", fmt.Errorf("saving a checkpoint in %s: the state is nil", d.Path)
	}
	if err := os.MkdirAll(d.Path, 0o777); err != nil {
		return "", err
	}
	number, err := d.next()
	if err != nil {
		return "", err
	}
	path = d.named(number, s.Step)
	if err := Save(path, s); err != nil {
		return "", err
	}
	return path, d.prune()
}

// next is the number of the next checkpoint.
func (d Dir) next() (uint64, error) {
	files, _, err := d.list()
	if err != nil || len(files) == 0 {
		return 1, err
	}
	return files[0].number + 1, nil
}

// named is the path of a checkpoint.
func (d Dir) named(number uint64, step int64) string {
	return filepath.Join(d.Path, fmt.Sprintf("%06d-step-%d%s", number, step, extension))
}

// Latest loads the newest checkpoint that is intact. Newer ones that are damaged are skipped and reported in Skipped. A
// folder without checkpoints gives [ErrNone], and one with damaged checkpoints only [ErrDamaged], with the reason for
// each. A file that cannot be read for another reason, such as missing permission, is an error and is not skipped.
func (d Dir) Latest() (*Found, error) {
	files, _, err := d.list()
	if err != nil {
		return nil, err
	}
	f := &Found{}
	for _, file := range files {
		f.Path = filepath.Join(d.Path, file.name)
		f.State, err = Load(f.Path)
		switch {
		case err == nil:
			return f, nil
		case !errors.Is(err, ErrDamaged):
			return nil, err
		}
		f.Skipped = append(f.Skipped, err)
	}
	if len(f.Skipped) > 0 {
		return nil, errors.Join(f.Skipped...)
	}
	return nil, fmt.Errorf("%s: %w", d.Path, ErrNone)
}

const extension = ".safetensors"

var (
	fileName = regexp.MustCompile(`^(\d{6,19})-step-\d+\` + extension + `$`)
	partName = regexp.MustCompile(`^(\d{6,19}-step-\d+)\.part-\d+-of-\d+\` + extension + `$`)
)

// numbered is a checkpoint in a folder.
type numbered struct {
	name   string
	number uint64
}

// list returns the checkpoints, newest first, and the files of checkpoints that are not whole: temporary ones, and parts without
// the file that lists them. It ignores other files.
func (d Dir) list() (files []numbered, rest []string, err error) {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	var parts [][2]string // each with the name of the file that lists it
	for _, e := range entries {
		name := e.Name()
		if base, ok := atomicfile.Temporary(name); ok && (fileName.MatchString(base) || partName.MatchString(base)) {
			rest = append(rest, name)
		}
		if m := partName.FindStringSubmatch(name); m != nil {
			parts = append(parts, [2]string{name, m[1] + extension})
		}
		if m := fileName.FindStringSubmatch(name); m != nil {
			n, _ := strconv.ParseUint(m[1], 10, 64) // 19 digits fit
			files = append(files, numbered{name, n})
		}
	}
	for _, p := range parts {
		if !slices.ContainsFunc(files, func(f numbered) bool { return f.name == p[1] }) {
			rest = append(rest, p[0])
		}
	}
	slices.SortFunc(files, func(a, b numbered) int {
		return cmp.Or(cmp.Compare(b.number, a.number), cmp.Compare(b.name, a.name))
	})
	return files, rest, nil
}

// prune removes old checkpoints, and what killed processes have left. The file that lists parts goes before them.
func (d Dir) prune() error {
	files, _, err := d.list()
	if err != nil {
		return err
	}
	var errs []error
	if d.Keep > 0 {
		for _, f := range files[min(d.Keep, len(files)):] {
			errs = append(errs, os.Remove(filepath.Join(d.Path, f.name)))
		}
	}
	_, rest, err := d.list()
	errs = append(errs, err)
	for _, name := range rest {
		path := filepath.Join(d.Path, name)
		if partName.MatchString(name) {
			errs = append(errs, os.Remove(path))
		} else {
			errs = append(errs, atomicfile.RemoveAbandoned(path))
		}
	}
	return errors.Join(errs...)
}
