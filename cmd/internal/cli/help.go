package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode/utf8"
)

// HelpCommand is fusec help.
var HelpCommand = &Command{
	Name:    "help",
	Args:    "[COMMAND]",
	Summary: "explain fusec or one of its commands",
	Doc:     "Without a command it lists them all.",
	Examples: []Example{
		{"fusec help bench", "all about fusec bench"},
	},
	Names: allNames,
	Setup: func(*FlagSet) Action {
		return func(e *Env, args []string) error {
			switch len(args) {
			case 0:
				return helpAll(e.Out, e.commands)
			case 1:
				c, err := e.find(args[0])
				if err != nil {
					return err
				}
				return c.help(e.Out)
			}
			return Usage("help takes one command, not %d", len(args))
		}
	},
}

func allNames(e *Env) []string { return CommandNames(e.commands) }

const helpSummary = "compile computation graphs into few fused launches, and show the result"

const helpModels = `
A model is a file model.graph with its weights beside it in model.safetensors; training code writes both with
fusec.Save. An ONNX model.onnx is taken in its place. A graph named - is read from standard input.`

var helpExamples = []Example{
	{"fusec dump testdata/models/transformer-block.graph -o block.svg", "the compiled graph as a picture"},
	{"fusec explain testdata/models/transformer-block.graph", "what was fused, what it saves, and what stood in the way of more"},
	{"fusec run testdata/models/digits-mlp.graph --in pixels=testdata/models/digits-mlp.pixels.npy --out results",
		"run it on an input of your own"},
	{"fusec demo", "what fusion is worth, on this machine"},
	{"fusec train karate --curve karate.svg", "train a small network, as one compiled program"},
	{"fusec bench testdata/models/digits-mlp.graph", "how much faster than Gorgonia's TapeMachine"},
}

const helpExits = "0 all well, 1 a failure, 2 wrong usage."

// helpAll prints the overview.
func helpAll(w io.Writer, commands []*Command) error {
	rows := make([]row, len(commands))
	for i, c := range commands {
		rows[i] = row{c.Name, c.Summary}
	}
	_, err := fmt.Fprintf(w, "%s\n\nusage:\n  fusec <command> [arguments]\n\ncommands:\n%s\n%s\n\n%s\n%s\n",
		flowing("fusec: "+helpSummary), rowsText(rows), flowing(helpModels), examplesText(helpExamples),
		flowing("Exit codes: "+helpExits+" More on each command: fusec help <command>."))
	return err
}

// help prints the command's help.
func (c *Command) help(w io.Writer) error {
	f, _ := c.flags()
	text := fmt.Sprintf("%s\n\nusage:\n", flowing("fusec "+c.Name+": "+c.Summary))
	for _, u := range c.usages() {
		text += wrapped("  fusec "+c.Name+leading(u)+"\n", columns)
	}
	text += "\n" + flowing(c.Doc) + "\n"
	if rows := f.rows(); len(rows) > 0 {
		text += "\nflags:\n" + rowsText(rows)
	}
	if len(c.Examples) > 0 {
		text += "\n" + examplesText(c.Examples)
	}
	_, err := io.WriteString(w, text)
	return err
}

// usages are the command's usages: what may follow its name, flags first.
func (c *Command) usages() (list []string) {
	const flags = "[flags]"
	any := strings.Contains(c.Args, flags)
	for usage := range strings.SplitSeq(c.Args, " | ") {
		words := slices.DeleteFunc(strings.Fields(usage), func(s string) bool { return s == flags })
		if any {
			words = append([]string{flags}, words...)
		}
		list = append(list, strings.Join(words, " "))
	}
	return list
}

// row is a flag or command and what it is for.
type row struct{ flag, help string }

// longestFlag is the width of the column of flags on a narrow terminal. What is longer has a line of its own.
const longestFlag = 24

func rowsText(rows []row) string {
	width := 0
	for _, r := range rows {
		if n := utf8.RuneCountInString(r.flag); columns == 0 || columns > 100 || n <= longestFlag {
			width = max(width, n)
		}
	}
	var b strings.Builder
	for _, r := range rows {
		first, rest := fmt.Sprintf("  %-*s  ", width, r.flag), strings.Repeat(" ", width+4)
		if utf8.RuneCountInString(r.flag) > width {
			b.WriteString("  " + r.flag + "\n")
			first = rest
		}
		for line := range strings.SplitSeq(r.help, "\n") {
			if columns > 0 {
				line = fill(strings.Fields(line), first, rest, "", columns)
			} else {
				line = first + line
			}
			b.WriteString(line + "\n")
			first = rest
		}
	}
	return b.String()
}

func examplesText(list []Example) string {
	text := "examples:\n"
	for _, x := range list {
		text += wrapped("  # "+x[1]+"\n", columns)
		if columns > 0 {
			text += fill(strings.Fields(x[0]), "  ", "    ", ` \`, columns) + "\n"
		} else {
			text += "  " + x[0] + "\n"
		}
	}
	return text
}

// widest is the longest line of flowing text.
const widest = 120

// flowing fits paragraphs to the terminal. Indented lines stay lines.
func flowing(s string) string {
	var list []string
	for _, p := range paragraphs(s) {
		switch {
		case isIndented(p):
			p = wrapped(p, columns)
		case columns > 0:
			p = fill(strings.Fields(p), "", "", "", min(columns, widest))
		}
		list = append(list, p)
	}
	return strings.Join(list, "\n\n")
}

func paragraphs(s string) []string { return strings.Split(strings.Trim(s, "\n"), "\n\n") }

func isIndented(paragraph string) bool {
	return strings.HasPrefix(paragraph, " ") || strings.Contains(paragraph, "\n ")
}
