package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"fusec/cmd/peers/workload"
)

// Record is the one line of JSON that a contestant prints for one measurement. Its standard output may hold other
// lines; the last one that starts with { counts.
//
// A measurement is: make the tensors; take the time of everything that comes before the first answer (FirstMS);
// warm up for at least 0.2 s and 3 runs; run again and again, each run timed by itself, for at least the seconds asked
// for and at least 9 times.
type Record struct {
	Peer     string `json:"peer"`
	Version  string `json:"version"`
	Workload string `json:"workload"`
	Threads  int    `json:"threads"`

	MedianMS float64 `json:"median_ms"` // of one run
	BestMS   float64 `json:"best_ms"`
	GFLOPs   float64 `json:"gflops"`   // the workload's FLOPs over the median, per second
	Reps     int     `json:"reps"`     // timed runs
	FirstMS  float64 `json:"first_ms"` // from tensors in memory to the first answer: build, compile, pack, run
	RSSMB    float64 `json:"rss_mb"`   // peak resident memory of the whole process, MiB
	Checksum float64 `json:"checksum"` // workload.Checksum of the output

	AbsSum  float64 `json:"abs_sum,omitempty"` // its second result
	Variant string  `json:"variant,omitempty"` // which of several ways was the fastest, where a contestant has several

	Unsupported string `json:"unsupported,omitempty"` // instead of numbers: why this contestant does not do this work
	Error       string `json:"error,omitempty"`       // instead of numbers: what went wrong
}

// contestant is a program that speaks the protocol.
type contestant struct {
	name    string
	renames bool     // it is called what its records say, once there is one
	argv    []string // workload, threads and seconds follow
	env     func(threads int) []string
}

// commandName names a --with contestant before it has named itself.
func commandName(command string) string {
	return filepath.Base(strings.Fields(command)[0])
}

// measure runs one measurement in a process of its own.
func (c *contestant) measure(ctx context.Context, w workload.Workload, threads int, seconds float64,
	limit time.Duration) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	argv := append(append([]string{}, c.argv...), w.Name, strconv.Itoa(threads), strconv.FormatFloat(seconds, 'g', -1, 64))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	inGroup(cmd)
	cmd.WaitDelay = 5 * time.Second
	cmd.Env = os.Environ()
	if c.env != nil {
		cmd.Env = append(cmd.Env, c.env(threads)...)
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	failed := cmd.Run()
	switch ctx.Err() {
	case context.DeadlineExceeded:
		return Record{}, fmt.Errorf("no answer within %v", limit)
	case context.Canceled:
		return Record{}, errors.New("interrupted")
	}
	rec, err := parseRecord(out.Bytes())
	if err == nil && failed != nil && rec.Unsupported == "" && rec.Error == "" {
		err = errors.New("it printed a record and then failed")
	}
	if err != nil {
		if failed != nil {
			err = fmt.Errorf("%v (%w)", failed, err)
		}
		if tail := lastLine(errs.String()); tail != "" {
			err = fmt.Errorf("%w: %s", err, tail)
		}
		return Record{}, err
	}
	if rec.Workload != w.Name || rec.Threads != threads {
		return Record{}, fmt.Errorf("asked for %s on %d threads, it answered for %s on %d", w.Name, threads, rec.Workload, rec.Threads)
	}
	if rec.Peer == "" {
		return Record{}, errors.New("its record has no peer")
	}
	if rec.Unsupported != "" || rec.Error != "" {
		return rec, nil
	}
	if err := rec.plausible(); err != nil {
		return Record{}, err
	}
	// One source for the figure that is compared.
	rec.GFLOPs = w.FLOPs / rec.MedianMS / 1e6
	return rec, nil
}

// parseRecord finds the record in what a contestant printed.
func parseRecord(out []byte) (Record, error) {
	var line []byte
	for l := range bytes.Lines(out) {
		if l = bytes.TrimSpace(l); bytes.HasPrefix(l, []byte("{")) {
			line = l
		}
	}
	var r Record
	if line == nil {
		return r, errors.New("it printed no record")
	}
	if err := json.Unmarshal(line, &r); err != nil {
		return Record{}, fmt.Errorf("its record is not readable: %w", err)
	}
	return r, nil
}

func (r Record) plausible() error {
	switch {
	case !(r.MedianMS > 0) || math.IsInf(r.MedianMS, 0):
		return fmt.Errorf("its record has median_ms %v", r.MedianMS)
	case !(r.BestMS > 0) || r.BestMS > r.MedianMS:
		return fmt.Errorf("its record has best_ms %v with median_ms %v", r.BestMS, r.MedianMS)
	case r.Reps < 1:
		return fmt.Errorf("its record has reps %d", r.Reps)
	}
	return nil
}

// lastLine is the last line of s that says something, not too much of it.
func lastLine(s string) string {
	s = strings.TrimSpace(s)
	s = strings.TrimSpace(s[strings.LastIndexByte(s, '\n')+1:])
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "…"
	}
	return s
}
