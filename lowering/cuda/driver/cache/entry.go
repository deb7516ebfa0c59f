package cache

// The format of a file of the folder, and the removal of files.

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fusec/graph/atomicfile"
)

const suffix = ".image"

// magic is the start of every entry. It is followed by the SHA-256 of the rest, the length of the log in eight bytes,
// the log and the image.
var magic = []byte("fusec CUDA image 1\n")

func encode(image []byte, log string) []byte {
	body := binary.LittleEndian.AppendUint64(nil, uint64(len(log)))
	body = append(append(body, log...), image...)
	sum := sha256.Sum256(body)
	return slices.Concat(magic, sum[:], body)
}

// read returns the image and the log at path, and whether they exist and are intact.
func read(path string) (image []byte, log string, ok bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, "", false
	}
	b, ok = bytes.CutPrefix(b, magic)
	if !ok || len(b) < sha256.Size+8 {
		return nil, "", false
	}
	body := b[sha256.Size:]
	if sha256.Sum256(body) != [sha256.Size]byte(b) {
		return nil, "", false
	}
	n := binary.LittleEndian.Uint64(body)
	body = body[8:]
	if n > uint64(len(body)) {
		return nil, "", false
	}
	return body[n:], string(body[:n]), true
}

// trim removes entries from the folder, the least recently used first and never keep, until at most limit bytes are
// left. It also removes temporary files of killed processes. Files that it cannot remove stay; a later call may remove
// them.
func trim(dir string, limit int64, keep string) {
	type entry struct {
		path string
		size int64
		used time.Time
	}
	var entries []entry
	total := int64(0)
	files, _ := os.ReadDir(dir)
	for _, f := range files {
		info, err := f.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // another process has removed it, or it is not an entry
		}
		path := filepath.Join(dir, f.Name())
		if base, ok := atomicfile.Temporary(f.Name()); ok && strings.HasSuffix(base, suffix) {
			_ = atomicfile.RemoveAbandoned(path)
			continue
		}
		if !strings.HasSuffix(f.Name(), suffix) {
			continue
		}
		total += info.Size()
		if path != keep {
			entries = append(entries, entry{path, info.Size(), info.ModTime()})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int {
		return cmp.Or(a.used.Compare(b.used), cmp.Compare(a.path, b.path))
	})
	for _, e := range entries {
		if total <= limit {
			return
		}
		if os.Remove(e.path) == nil {
			total -= e.size
		}
	}
}
