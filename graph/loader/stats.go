package loader

import (
	"slices"
	"time"
)

// Stats is what a loader has done since it was opened.
type Stats struct {
	Files   []FileStats
	Batches int64 // returned by Next
	Rows    int64 // in them
	Bytes   int64 // of the files that they were made from
	// Waited is how long Next waited for data. If it is almost 0, the training step, not the loader, limits the speed.
	Waited time.Duration
}

// FileStats says how a file is read.
type FileStats struct {
	Path   string
	Size   int64 // in bytes
	Access Access
	Reason string // why not as the options asked, or ""
}

// Stats reports what was done so far.
func (l *Loader) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stats
	s.Files = slices.Grow(s.Files, len(l.files))
	for _, f := range l.files {
		s.Files = append(s.Files, FileStats{f.path, f.size, f.access, f.reason})
	}
	return s
}
