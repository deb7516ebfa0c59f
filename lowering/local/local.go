// Package local is what fusec knows of the machine that it runs on: the processor, and the folders in which programs keep files
// for later programs.
package local

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"fusec/graph/atomicfile"
)

// Variable is the environment variable that names the folder of kept files.
const Variable = "FUSEC_CACHE"

// Untuned is the environment variable that, if it is not empty, has programs ignore tunings, other than those in the folder that
// [Variable] names.
const Untuned = "FUSEC_UNTUNED"

// Folder is the folder of files for a target: $FUSEC_CACHE or, if that is not set, fusec/TARGET in the user's cache folder.
func Folder(target string) (string, error) {
	if dir := os.Getenv(Variable); dir != "" {
		return dir, nil
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for kept files: %w; set %s", err, Variable)
	}
	return filepath.Join(dir, "fusec", target), nil
}

// TuningFile is the path of what `fusec tune` has measured for a target on a chip: a readable text. Programs for that chip are
// compiled with it. Without it, fixed rules choose.
func TuningFile(target, chip string) (string, error) {
	folder, err := Folder(target)
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

// A parsed tuning is kept with the text that it was made from.
type parsed struct {
	text   string
	tuning any
}

var tunings sync.Map // of parsed, by path

// ReadTuning reads the tuning of a chip by a parser of its text; nil if there is none. An error of the parser names the file. It
// is parsed again only after the file has changed, so nobody may change what the pointer points to.
func ReadTuning[T any](target, chip string, parse func(text string) (*T, error)) (*T, error) {
	if os.Getenv(Untuned) != "" && os.Getenv(Variable) == "" {
		return nil, nil
	}
	path, err := TuningFile(target, chip)
	if err != nil {
		return nil, nil // without a folder there is no tuning
	}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if before, ok := tunings.Load(path); ok && before.(parsed).text == string(text) {
		if t, ok := before.(parsed).tuning.(*T); ok {
			return t, nil
		}
	}
	t, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w; remove it, or run fusec tune again", path, err)
	}
	tunings.Store(path, parsed{string(text), t})
	return t, nil
}

// WriteTuning writes the tuning of a chip, and returns the path.
func WriteTuning(target, chip, text string) (string, error) {
	path, err := TuningFile(target, chip)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
		return "", err
	}
	return path, atomicfile.Write(path, func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	})
}

// Processor is the processor's name as its maker gives it, or its architecture.
var Processor = sync.OnceValue(func() string {
	if name := brand(); name != "" {
		return name
	}
	return processorOf(Fields("/proc/cpuinfo"))
})

// processorOf is the name in what Linux tells of a processor. On Arm it tells numbers: of the maker and of the kind.
func processorOf(info map[string]string) string {
	for _, key := range []string{"model name", "Model", "Hardware"} {
		s := strings.Join(strings.Fields(info[key]), " ")
		if s != "" && !strings.ContainsAny(s, "0123456789") && info["cpu family"] != "" { // as virtual machines give it
			s += fmt.Sprintf(" family %s model %s", info["cpu family"], info["model"])
		}
		if s != "" {
			return s
		}
	}
	if part := info["CPU part"]; part != "" {
		return fmt.Sprintf("%s implementer %s part %s", runtime.GOARCH, info["CPU implementer"], part)
	}
	return runtime.GOARCH
}

// Fields reads a file of lines "key: value"; of a key that is there several times, the first. It is empty where there
// is no such file.
func Fields(path string) map[string]string {
	m := map[string]string{}
	f, err := os.Open(path)
	if err != nil {
		return m
	}
	defer f.Close()
	s := bufio.NewScanner(f)
	for s.Scan() {
		key, value, ok := strings.Cut(s.Text(), ":")
		if key = strings.TrimSpace(key); ok && m[key] == "" {
			m[key] = strings.TrimSpace(value)
		}
	}
	return m
}
