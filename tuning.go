package fusec

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver/cache"
)

// TuningFile is where the tuning of a chip of the given name is kept: a readable text beside the compiled kernels, which
// `fusec tune` writes and programs for that chip are compiled by. Removing it makes choices go by rules again.
func TuningFile(chip string) (string, error) {
	folder, err := cache.Folder()
	if err != nil {
		return "", err
	}
	plain := func(r rune) rune {
		if r <= ' ' || r == '/' || r == filepath.Separator {
			return '-'
		}
		return r
	}
	return filepath.Join(folder, "tuning-"+strings.Map(plain, chip)+".txt"), nil
}

// readTuning is the tuning of a chip, nil if there is none.
func readTuning(chip string) (*kernels.Tuning, error) {
	path, err := TuningFile(chip)
	if err != nil {
		return nil, nil // where kernels are not kept, no tuning is
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t, err := kernels.ParseTuning(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, or run fusec tune again", path, err)
	}
	return t, nil
}
