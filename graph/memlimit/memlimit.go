// Package memlimit determines how much memory this process can still allocate, so that an allocation that is too large
// is refused with an error. On systems other than Linux, where this is unknown, nothing is refused.
package memlimit

import (
	"bufio"
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"strconv"
	"strings"
)

// Large is the size in bytes below which nothing is checked.
const Large = 1 << 30

// An Error says that more memory is needed than there is.
type Error struct{ Need, Have int64 } // in bytes

func (e *Error) Error() string {
	return fmt.Sprintf("%s of memory are needed; this machine has %s available", gibibytes(e.Need), gibibytes(e.Have))
}

func gibibytes(n int64) string { return fmt.Sprintf("%.3g GiB", float64(n)/(1<<30)) }

// Check returns an [*Error] if need bytes, which are not allocated yet, are more than this process can allocate. Sizes
// below [Large] are not checked.
func Check(need int64) error { return new(Sum).Check(need) }

// A Sum compares a growing sum with the memory that was available when the sum became large, because allocated memory
// is taken only when it is first written. The zero value is ready to use.
type Sum struct {
	have  int64
	known bool
	read  bool
}

// Check returns an [*Error] if need bytes, the whole sum, are more than this process can allocate.
func (s *Sum) Check(need int64) error {
	if need < Large {
		return nil
	}
	if !s.read {
		s.have, s.known = Available()
		if s.known && need > s.have {
			debug.FreeOSMemory() // frees unreferenced memory
			s.have, s.known = Available()
		}
		s.read = true
	}
	if s.known && need > s.have {
		return &Error{need, s.have}
	}
	return nil
}

// Available is the memory in bytes that this process can still allocate: the machine's, or less if a control group
// limits it. It is not known on every system.
func Available() (n int64, known bool) { return available(os.DirFS("/")) }

// available is Available with the files below a root.
func available(root fs.FS) (n int64, known bool) {
	take := func(have int64) {
		if !known || have < n {
			n, known = max(have, 0), true
		}
	}
	if have, ok := value(root, "proc/meminfo", "MemAvailable:"); ok {
		take(have * 1024)
	}
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return n, known
	}
	for line := range strings.Lines(string(groups)) { // number:controllers:path
		part := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(part) != 3 {
			continue
		}
		g := version2
		switch part[1] {
		case "":
		case "memory":
			g = version1
		default:
			continue
		}
		for at := path.Join("/", part[2]); ; at = path.Dir(at) {
			if have, ok := g.available(root, path.Join(g.mount, at)); ok {
				take(have)
			}
			if at == "/" {
				break
			}
		}
	}
	return n, known
}

// groupFiles are the files of a control group, by the version of the interface.
type groupFiles struct{ mount, limit, usage, active, inactive string }

var (
	version1 = groupFiles{"sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file",
		"total_inactive_file"}
	version2 = groupFiles{"sys/fs/cgroup", "memory.max", "memory.current", "active_file", "inactive_file"}
)

// available is the memory that the group in a folder has left; false if it has no limit. Cached files count as free.
func (g groupFiles) available(root fs.FS, dir string) (n int64, limited bool) {
	limit, ok := value(root, path.Join(dir, g.limit), "")
	if !ok {
		return 0, false
	}
	usage, ok := value(root, path.Join(dir, g.usage), "")
	if !ok {
		return 0, false
	}
	for _, cached := range []string{g.active, g.inactive} {
		n, _ := value(root, path.Join(dir, "memory.stat"), cached)
		usage -= n
	}
	return limit - max(usage, 0), true
}

// value reads the number after a key at the beginning of a line; the key "" is for a file with a single number.
func value(root fs.FS, name, key string) (n int64, ok bool) {
	file, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	for s := bufio.NewScanner(bytes.NewReader(file)); s.Scan(); {
		words := strings.Fields(s.Text())
		if key != "" && len(words) > 0 && words[0] == key {
			words = words[1:]
		} else if key != "" {
			continue
		}
		if len(words) == 0 {
			return 0, false
		}
		n, err := strconv.ParseInt(words[0], 10, 64)
		return n, err == nil
	}
	return 0, false
}
