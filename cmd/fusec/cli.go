package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime/debug"
	"strings"
	"syscall"
)

// Exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// env is what a command has of the process.
type env struct {
	ctx    context.Context
	stdin  io.Reader
	out    *bufio.Writer // standard output; keeps the first error, which run reports
	stderr io.Writer
}

// note tells the user something that is no error.
func (e *env) note(format string, args ...any) {
	fmt.Fprintf(e.stderr, "fusec: note: %s\n", plain(fmt.Sprintf(format, args...)))
}

// print writes a report, which may hold names from a file, to standard output.
func (e *env) print(text string) error {
	_, err := e.out.WriteString(plain(text))
	return err
}

// run is main without the process: it gives the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	e := &env{ctx: ctx, stdin: stdin, out: bufio.NewWriter(stdout), stderr: stderr}
	err := guarded(e, args)
	if ctx.Err() != nil {
		if errors.Is(err, ctx.Err()) {
			err = nil
		}
		err = errors.Join(err, errors.New("interrupted"))
	}
	if failed := e.out.Flush(); failed != nil {
		if errors.Is(err, failed) { // the command met it too
			err = nil
		}
		err = errors.Join(err, fmt.Errorf("writing to standard output: %w", cause(failed)))
	}
	return report(stderr, err)
}

// guarded runs the command line. A panic, which would be a mistake in fusec, becomes an error.
func guarded(e *env, args []string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("internal error: %v\n%s", r, debug.Stack())
		}
	}()
	return dispatch(e, args)
}

// report prints an error, each of its lines with the program's name, and gives the exit code. A reader of the output
// that went away is not worth a word.
func report(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, syscall.EPIPE) {
		return exitFailure
	}
	for line := range strings.Lines(err.Error()) {
		fmt.Fprintf(stderr, "fusec: %s\n", plain(strings.TrimRight(line, "\n")))
	}
	var usage *usageError
	if errors.As(err, &usage) {
		fmt.Fprintf(stderr, "fusec: see fusec help%s\n", leading(usage.command))
		return exitUsage
	}
	return exitFailure
}

// usageError is a command line that means nothing.
type usageError struct {
	command string // empty for fusec itself
	message string
}

// Error implements error.
func (e *usageError) Error() string { return e.message }

// usage makes a usageError for a command that is being parsed; dispatch fills in the command's name.
func usage(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// cause strips the operation and path from an error whose message will name the file better.
func cause(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// leading puts a space before s unless it is empty.
func leading(s string) string {
	if s == "" {
		return ""
	}
	return " " + s
}
