// Package atomicfile replaces files atomically: a reader sees the complete old or new contents, and a write that fails
// leaves the old file unchanged.
package atomicfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"time"
)

// File writes the new contents to a temporary file in the same folder. [File.Commit] renames it to the target, and
// [File.Abort] removes it.
type File struct {
	name string // of the target, as the caller gave it
	path string // of the file to replace, symbolic links followed
	tmp  *os.File
	buf  *bufio.Writer
	done bool
}

// abandoned is the age at which a temporary file counts as left over by a killed process, where files cannot be locked.
const abandoned = time.Hour

// Create starts to replace the file at path, which need not exist. If path is a symbolic link, its target is replaced.
// Anything but a regular file is refused. Errors of a [File] name path, not the temporary file.
func Create(path string) (*File, error) {
	name := path
	if path == "" {
		return nil, errors.New("the file's name is empty")
	}
	if p, err := filepath.EvalSymlinks(path); err == nil {
		path = p
	}
	mode := fs.FileMode(0o666)
	old, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, renamed(err, name)
	case !old.Mode().IsRegular():
		return nil, &fs.PathError{Op: "replace", Path: name, Err: errors.New("not a regular file")}
	default:
		mode = old.Mode().Perm()
	}
	tmp, err := createTemp(path, mode)
	if err != nil {
		return nil, renamed(err, name)
	}
	f := &File{name: name, path: path, tmp: tmp}
	f.buf = bufio.NewWriterSize(target{f}, 1<<16)
	if old != nil {
		if err := tmp.Chmod(mode); err != nil {
			f.Abort()
			return nil, renamed(err, name)
		}
	}
	return f, nil
}

// target writes to the temporary file. Its errors name the target.
type target struct{ *File }

func (t target) Write(b []byte) (int, error) {
	n, err := t.tmp.Write(b)
	return n, renamed(err, t.name)
}

// renamed gives an error about a temporary file the name of its target.
func renamed(err error, name string) error {
	switch e := err.(type) {
	case *fs.PathError:
		return &fs.PathError{Op: e.Op, Path: name, Err: e.Err}
	case *os.LinkError:
		return &fs.PathError{Op: e.Op, Path: name, Err: e.Err}
	}
	return err
}

// Cause is an error of the file at path without that path, for a message that begins with it.
func Cause(path string, err error) error {
	if e, ok := err.(*fs.PathError); ok && e.Path == path {
		return e.Err
	}
	return err
}

// createTemp makes a new file in the folder of path and locks it. Unlike [os.CreateTemp] it leaves the permissions to
// the umask.
func createTemp(path string, mode fs.FileMode) (*os.File, error) {
	dir, base := filepath.Split(path)
	for i := range 10000 {
		name := filepath.Join(dir, fmt.Sprintf(".%s.%d-%d.tmp", base, os.Getpid(), i))
		f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if free, err := lock(f); err != nil || free && same(f, name) {
			return f, nil // without a lock its age protects it
		}
		f.Close() // before it was locked, another process took it for an abandoned file and removes it
	}
	return nil, fmt.Errorf("%s: too many temporary files in its folder", path)
}

// same reports whether the file at path is f.
func same(f *os.File, path string) bool {
	a, err := f.Stat()
	if err != nil {
		return false
	}
	b, err := os.Lstat(path)
	return err == nil && os.SameFile(a, b)
}

// Temporary reports whether name is that of a temporary file of this package, and returns the name of the file that it
// replaces. Both names are without the folder. See [RemoveAbandoned].
func Temporary(name string) (base string, ok bool) {
	m := temporary.FindStringSubmatch(name)
	if m == nil {
		return "", false
	}
	return m[1], true
}

var temporary = regexp.MustCompile(`^\.(.+)\.\d+-\d+\.tmp$`)

// RemoveAbandoned removes the temporary file at path if the process that wrote it has ended: a writer holds a lock on
// its file until it is in place or removed. Where files cannot be locked, it removes those that were last written an
// hour ago or earlier. It is not an error if the file is in use or does not exist.
func RemoveAbandoned(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0) // over a network only a file open for writing can be locked
	if errors.Is(err, fs.ErrPermission) {
		f, err = os.Open(path) // it replaces a read-only file
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	free, err := lock(f)
	if err != nil {
		info, err := f.Stat()
		f.Close() // a file that is open cannot be removed on every system
		if err != nil || time.Since(info.ModTime()) < abandoned {
			return err
		}
		return remove(path)
	}
	defer f.Close()
	if !free || !same(f, path) {
		return nil
	}
	return remove(path)
}

// remove removes a file that may have been removed already.
func remove(path string) error {
	if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// Write implements io.Writer.
func (f *File) Write(b []byte) (int, error) { return f.buf.Write(b) }

// Sync writes everything so far to the disk, so that [File.Commit] is unlikely to fail.
func (f *File) Sync() error {
	if err := f.buf.Flush(); err != nil {
		return err
	}
	return renamed(f.tmp.Sync(), f.name)
}

// Commit replaces the file by the new contents. If it fails, the old file is unchanged and the temporary one is
// removed.
func (f *File) Commit() error {
	if f.done {
		return fs.ErrClosed
	}
	f.done = true
	err := f.Sync()
	if err == nil {
		err = f.rename()
	} else {
		f.tmp.Close()
	}
	if err != nil {
		os.Remove(f.tmp.Name())
		return renamed(err, f.name)
	}
	syncDir(filepath.Dir(f.path))
	return nil
}

// syncDir makes a rename in dir durable, where the file system supports that.
func syncDir(dir string) {
	if d, err := os.Open(dir); err == nil {
		_ = d.Sync()
		d.Close()
	}
}

// Abort removes the temporary file unless it has been committed. It may be deferred.
func (f *File) Abort() {
	if f.done {
		return
	}
	f.done = true
	f.tmp.Close()
	os.Remove(f.tmp.Name())
}

// Write replaces the file at path with what fn writes. If fn or the disk fails, the old file stays.
func Write(path string, fn func(io.Writer) error) error {
	f, err := Create(path)
	if err != nil {
		return err
	}
	defer f.Abort()
	if err := fn(f); err != nil {
		return err
	}
	return f.Commit()
}
