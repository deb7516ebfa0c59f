package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
)

// output is a file to be written.
type output struct {
	path  string
	write func(io.Writer) error
}

// fixed makes a file of finished bytes.
func fixed(path string, data []byte) output {
	return output{path, func(w io.Writer) error { _, err := w.Write(data); return err }}
}

// writeFiles writes all files or none: every one is on the disk in full, beside its place, before the first takes it.
func writeFiles(files ...output) error {
	var made []string
	defer func() {
		for _, tmp := range made {
			os.Remove(tmp) // those that took their place are gone
		}
	}()
	for _, o := range files {
		tmp, err := writeBeside(o)
		if tmp != "" {
			made = append(made, tmp)
		}
		if err != nil {
			return fmt.Errorf("writing %s: %w", o.path, cause(err))
		}
	}
	for i, o := range files {
		if err := os.Rename(made[i], o.path); err != nil {
			return fmt.Errorf("writing %s: %w", o.path, cause(err))
		}
	}
	return nil
}

// writeBeside writes a file's contents to a temporary one in its folder, and gives that one's path.
func writeBeside(o output) (tmp string, err error) {
	f, err := createBeside(o.path)
	if err != nil {
		return "", err
	}
	b := bufio.NewWriter(f)
	err = o.write(b)
	for _, step := range []func() error{b.Flush, f.Sync} {
		if err == nil {
			err = step()
		}
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return f.Name(), err
}

// createBeside makes a new file in the folder of path, with path's permissions if there is such a file already.
func createBeside(path string) (*os.File, error) {
	mode := fs.FileMode(0o666)
	switch info, err := os.Stat(path); {
	case err == nil && !info.Mode().IsRegular():
		return nil, errors.New("it is there and not a regular file")
	case err == nil:
		mode = info.Mode().Perm()
	}
	dir, base := filepath.Split(path)
	for i := 0; ; i++ {
		name := filepath.Join(dir, fmt.Sprintf(".%s.%d-%d.tmp", base, os.Getpid(), i))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if !errors.Is(err, fs.ErrExist) {
			return f, err
		}
	}
}

// writeFile replaces one file whole, or the file that a link leads to. A device or pipe is written as it is.
func writeFile(path string, data []byte) error {
	if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() && !info.IsDir() {
		if err := writeThrough(path, data); err != nil {
			return fmt.Errorf("writing %s: %w", path, cause(err))
		}
		return nil
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	return writeFiles(fixed(path, data))
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

// writeFolder writes files into a folder, which is made if need be, all or none.
func writeFolder(dir string, files []output) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return fmt.Errorf("making the folder %s: %w", dir, cause(err))
	}
	for i := range files {
		files[i].path = filepath.Join(dir, files[i].path)
	}
	return writeFiles(files...)
}

// isTerminal reports whether w is a terminal, or another device that people watch.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
