// Package cache stores a CUDA compiler's images on disk, so that each kernel is compiled once per machine. Processes
// may share a folder.
package cache

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"fusec/graph/atomicfile"
	kernels "fusec/kernels/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/local"
)

// Variable is the environment variable that names the folder of images.
const Variable = local.Variable

// Limit is how many bytes of images are kept unless [Compiler.Limit] says otherwise.
const Limit = 1 << 30

// Folder is the folder of images, see [local.Folder].
func Folder() (string, error) { return local.Folder("cuda") }

// Compiler returns the images of another compiler, from disk if they exist. The key of an image is the source without
// its comments ([kernels.Key]), the chip's target, and the compiler's version, which includes its options. Damaged
// images are compiled again. A folder that cannot be written only costs time.
type Compiler struct {
	// Limit is how many bytes of images the folder keeps: the least recently used ones are removed when one is added.
	// It may be changed before the first call.
	Limit int64

	of  driver.Compiler
	dir string

	mu      sync.Mutex
	running map[string]*compilation
}

var _ interface {
	driver.Compiler
	driver.Batcher
} = (*Compiler)(nil)

// compilation is a compilation that a goroutine has started and for which others may wait.
type compilation struct {
	done  chan struct{}
	image []byte
	log   string
	err   error
}

// New stores the images of a compiler in the folder, which is created with the first image.
func New(of driver.Compiler, dir string) *Compiler {
	return &Compiler{Limit: Limit, of: of, dir: dir, running: map[string]*compilation{}}
}

// Version is that of the compiler.
func (c *Compiler) Version() string { return c.of.Version() }

// Batch is that of the compiler, or the number of processors.
func (c *Compiler) Batch() int { return driver.BatchOf(c.of) }

// Compile implements [driver.Compiler]. The log is what the compiler said when it made the image. Goroutines that ask
// for one image at the same time wait for one compilation; the image is theirs to share, not to change.
func (c *Compiler) Compile(source string, chip kernels.Chip) (image []byte, log string, err error) {
	key := c.key(source, chip)
	c.mu.Lock()
	if r := c.running[key]; r != nil {
		c.mu.Unlock()
		<-r.done
		return r.image, r.log, r.err
	}
	r := &compilation{done: make(chan struct{}), err: errors.New("the compiler panicked")}
	c.running[key] = r
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.running, key)
		c.mu.Unlock()
		close(r.done)
	}()
	r.image, r.log, r.err = c.compile(source, chip, filepath.Join(c.dir, key+suffix))
	return r.image, r.log, r.err
}

// compile reads the image at path, or makes it and writes it there.
func (c *Compiler) compile(source string, chip kernels.Chip, path string) ([]byte, string, error) {
	if image, log, ok := read(path); ok {
		now := time.Now()
		_ = os.Chtimes(path, now, now) // the time of the last use
		return image, log, nil
	}
	image, log, err := c.of.Compile(source, chip)
	if err != nil {
		return nil, log, err
	}
	if c.store(path, image, log) == nil {
		trim(c.dir, c.Limit, path)
	}
	return image, log, nil
}

// key is the name of an image's file.
func (c *Compiler) key(source string, chip kernels.Chip) string {
	sum := sha256.New()
	fmt.Fprintf(sum, "%s\n%s\n%s", kernels.Key(source), chip.Target(), c.of.Version())
	return hex.EncodeToString(sum.Sum(nil))
}

// store writes an image atomically.
func (c *Compiler) store(path string, image []byte, log string) error {
	if err := os.MkdirAll(c.dir, 0o777); err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error {
		_, err := w.Write(encode(image, log))
		return err
	})
}
