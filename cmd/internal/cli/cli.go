// Package cli is what the commands of fusec share: flags, help, errors, exit codes, files, and how numbers are printed.
package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
)

// Exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1
	ExitUsage   = 2
)

// Env is what a command has of the process.
type Env struct {
	Ctx    context.Context
	Stdin  io.Reader
	Out    *bufio.Writer // standard output; keeps the first error, which run reports
	Stderr io.Writer

	commands []*Command
}

// Note tells the user something that is no error.
func (e *Env) Note(format string, args ...any) {
	tell(e.Stderr, "note: "+fmt.Sprintf(format, args...))
}

// NoteCommand is [Env.Note] with a command line to be copied, which stays one line on a narrow terminal, too.
func (e *Env) NoteCommand(note string, words ...string) {
	e.Note("%s:", note)
	io.WriteString(e.Stderr, "  "+Shell(words...)+"\n")
}

// tell writes a line for the user, which may hold names from a file, in the width of the terminal.
func tell(w io.Writer, line string) {
	io.WriteString(w, wrapped("fusec: "+Plain(line)+"\n", columnsOf(w)))
}

// Print writes a report, which may hold names from a file, to standard output.
func (e *Env) Print(text string) error {
	_, err := e.Out.WriteString(wrapped(Plain(text), columns))
	return err
}

// RunCommandLine is main without the process: it gives the exit code.
func RunCommandLine(ctx context.Context, commands []*Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	e := &Env{Ctx: ctx, Stdin: stdin, Out: bufio.NewWriter(stdout), Stderr: stderr, commands: commands}
	columns = columnsOf(stdout)
	err := guarded(e, args)
	if ctx.Err() != nil {
		if errors.Is(err, ctx.Err()) {
			err = nil
		}
		err = errors.Join(err, errors.New("interrupted"))
	}
	if failed := e.Out.Flush(); failed != nil {
		if errors.Is(err, failed) { // the command met it too
			err = nil
		}
		err = errors.Join(err, fmt.Errorf("writing to standard output: %w", Cause(failed)))
	}
	return report(stderr, err)
}

// guarded runs the command line. A panic, which would be a mistake in fusec, becomes an error.
func guarded(e *Env, args []string) (err error) {
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
		return ExitOK
	}
	if errors.Is(err, syscall.EPIPE) {
		return ExitFailure
	}
	var usage *usageError
	if errors.As(err, &usage) && usage.message == "" { // the overview has been printed
		return ExitUsage
	}
	for line := range strings.Lines(options.ReplaceAllStringFunc(err.Error(), func(s string) string { return optionFlags[s] })) {
		tell(stderr, strings.TrimRight(line, "\n"))
	}
	if usage != nil {
		fmt.Fprintf(stderr, "fusec: see fusec help%s\n", leading(usage.command))
		return ExitUsage
	}
	return ExitFailure
}

// optionFlags says by which flag, or in which other way, a command is told what Go code says by an option of package fusec, or by a
// field of the loader's: errors name these.
var optionFlags = map[string]string{
	"WithPipeline": "--pipeline", "WithMesh": "--mesh", "WithZeRO": "--zero", "WithSplit": "--split", "WithTarget": "--target",
	"WithMemoryBudget": "--memory-budget", "WithPrecision": "--precision", "WithWorkers": "--threads",
	"WithDevices": "--target (such as cpu,cpu)", "WithGroup": "a launcher (such as mpirun)",
	"Source.Tensor": "FILE#NAME", "Source.Raw": "FILE:TYPE",
}

// options finds the options of optionFlags in a text.
var options = regexp.MustCompile(`\b(` + strings.Join(slices.Sorted(maps.Keys(optionFlags)), "|") + `)\b`)

// usageError is a command line that means nothing.
type usageError struct {
	command string // empty for fusec itself
	message string
}

// Error implements error.
func (e *usageError) Error() string { return e.message }

// Usage makes a usageError for a command that is being parsed; dispatch fills in the command's name.
func Usage(format string, args ...any) error {
	return &usageError{message: fmt.Sprintf(format, args...)}
}

// Cause strips the operation and path from an error whose message will name the file better.
func Cause(err error) error {
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
