package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"fusec/graph/atomicfile"
)

// Output is a file to be written.
type Output struct {
	Path  string
	Write func(io.Writer) error
}

// Fixed makes a file of finished bytes.
func Fixed(path string, data []byte) Output {
	return Output{path, func(w io.Writer) error { _, err := w.Write(data); return err }}
}

// writeFiles writes all files or none: every one is on the disk in full, beside its place, before the first takes it.
func writeFiles(files ...Output) error {
	var made []*atomicfile.File
	defer func() {
		for _, f := range made {
			f.Abort() // those that took their place stay
		}
	}()
	for _, o := range files {
		f, err := atomicfile.Create(o.Path)
		if err == nil {
			made = append(made, f)
			err = o.Write(f)
		}
		if err == nil {
			err = f.Sync()
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", o.Path, Cause(err))
		}
	}
	for i, f := range made {
		if err := f.Commit(); err != nil {
			return fmt.Errorf("writing %s: %w", files[i].Path, Cause(err))
		}
	}
	return nil
}

// CanWrite reports, as writing would, that a file cannot be made or replaced at path. What is there stays as it is.
func CanWrite(path string) error {
	f, err := atomicfile.Create(path)
	if err != nil {
		return fmt.Errorf("writing %s: %w", path, Cause(err))
	}
	f.Abort()
	return nil
}

// WriteFile replaces one file whole, or the file that a link leads to. A device or pipe is written as it is.
func WriteFile(path string, data []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		if err := writeThrough(path, data); err != nil {
			return fmt.Errorf("writing %s: %w", path, Cause(err))
		}
		return nil
	}
	return writeFiles(Fixed(path, data))
}

// writeThrough writes to a device or pipe.
func writeThrough(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// WriteFolder writes files into a folder, which is made if need be, all or none.
func WriteFolder(dir string, files []Output) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("making the folder %s: %w", dir, Cause(err))
	}
	for i := range files {
		files[i].Path = filepath.Join(dir, files[i].Path)
	}
	return writeFiles(files...)
}

// IsTerminal reports whether w is a terminal, or another device that people watch.
func IsTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
