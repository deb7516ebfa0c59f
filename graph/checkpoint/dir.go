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
	files, _, err := d.list()
	if err != nil {
		return "", err
	}
	number := uint64(1)
	if len(files) > 0 {
		number = files[0].number + 1
	}
	path = filepath.Join(d.Path, fmt.Sprintf("%06d-step-%d%s", number, s.Step, extension))
	if err := Save(path, s); err != nil {
		return "", err
	}
	return path, d.prune()
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

var fileName = regexp.MustCompile(`^(\d{6,19})-step-\d+\` + extension + `$`)

// numbered is a checkpoint in a folder.
type numbered struct {
	name   string
	number uint64
}

// list returns the checkpoints, newest first, and the temporary files of checkpoints. It ignores other files.
func (d Dir) list() (files []numbered, temporary []string, err error) {
	entries, err := os.ReadDir(d.Path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		name := e.Name()
		if base, ok := atomicfile.Temporary(name); ok && fileName.MatchString(base) {
			temporary = append(temporary, name)
		}
		if m := fileName.FindStringSubmatch(name); m != nil {
			n, _ := strconv.ParseUint(m[1], 10, 64) // 19 digits fit
			files = append(files, numbered{name, n})
		}
	}
	slices.SortFunc(files, func(a, b numbered) int {
		return cmp.Or(cmp.Compare(b.number, a.number), cmp.Compare(b.name, a.name))
	})
	return files, temporary, nil
}

// prune removes old checkpoints and temporary files.
func (d Dir) prune() error {
	files, temporary, err := d.list()
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range temporary {
		errs = append(errs, atomicfile.RemoveAbandoned(filepath.Join(d.Path, name)))
	}
	if d.Keep > 0 {
		for _, f := range files[min(d.Keep, len(files)):] {
			errs = append(errs, os.Remove(filepath.Join(d.Path, f.name)))
		}
	}
	return errors.Join(errs...)
}
