package cli

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"time"
)

// ManCommand is fusec man.
var ManCommand = &Command{
	Name:    "man",
	Args:    "[flags] [COMMAND]",
	Summary: "print the manual page of fusec or one of its commands, or write all",
	Doc: `
The pages say what fusec help says, in the format of man. Without -o one page goes to standard output. With -o DIR all
pages are written into the folder: fusec.1, fusec-dump.1 and so on.`,
	Examples: []Example{
		{"fusec man dump | man -l -", "read the page of fusec dump"},
		{"fusec man -o ~/.local/share/man/man1", "install the pages for this user"},
	},
	Names: allNames,
	Setup: func(f *FlagSet) Action {
		var dir string
		f.Output(&dir, "write all pages into the folder `DIR`")
		return func(e *Env, args []string) error {
			var files []Output
			switch {
			case dir != "" && len(args) > 0:
				return Usage("-o writes the pages of all commands: leave out %s", args[0])
			case dir != "":
				files = append(files, Fixed("fusec.1", manual(e, nil)))
				for _, c := range e.commands {
					files = append(files, Fixed("fusec-"+c.Name+".1", manual(e, c)))
				}
				return WriteFolder(dir, files)
			case len(args) > 1:
				return Usage("man takes one command, not %d", len(args))
			}
			var of *Command
			if len(args) == 1 {
				c, err := e.find(args[0])
				if err != nil {
					return err
				}
				of = c
			}
			_, err := e.Out.Write(manual(e, of))
			return err
		}
	},
}

// manual is the page of a command, or of fusec itself, in man's macros.
func manual(e *Env, c *Command) []byte {
	p := &page{}
	if c == nil {
		p.begin("fusec", helpSummary)
		p.section("SYNOPSIS")
		p.line(".B fusec")
		p.line(".I command")
		p.line(roff("[arguments]"))
		p.section("DESCRIPTION")
		p.text(helpModels)
		p.section("COMMANDS")
		for _, c := range e.commands {
			p.item("fusec-"+c.Name+"(1)", c.Summary)
		}
		p.examples(helpExamples)
		p.section("EXIT STATUS")
		p.text(helpExits)
		return p.Bytes()
	}
	f, _ := c.flags()
	p.begin("fusec-"+c.Name, c.Summary)
	p.section("SYNOPSIS")
	for i, u := range c.usages() {
		if i > 0 {
			p.line(".br")
		}
		p.line(".B " + roff("fusec "+c.Name))
		if u != "" {
			p.line(roff(u))
		}
	}
	p.section("DESCRIPTION")
	p.text(c.Doc)
	if rows := f.rows(); len(rows) > 0 {
		p.section("OPTIONS")
		for _, r := range rows {
			p.item(r.flag, r.help)
		}
	}
	p.examples(c.Examples)
	p.section("SEE ALSO")
	p.line(".BR fusec (1)")
	return p.Bytes()
}

// page is a manual page that is being written.
type page struct{ bytes.Buffer }

func (p *page) line(s string) { p.WriteString(s + "\n") }

func (p *page) begin(name, summary string) {
	date := ""
	if path, err := os.Executable(); err == nil {
		if info, err := os.Stat(path); err == nil { // the pages are as old as the program
			date = info.ModTime().UTC().Format(time.DateOnly)
		}
	}
	p.line(fmt.Sprintf(`.TH %q 1 %q %q "fusec manual"`, strings.ToUpper(name), date, "fusec "+Version()))
	p.section("NAME")
	p.flow(name + " - " + summary)
}

func (p *page) section(title string) { p.line(".SH " + title) }

// text writes paragraphs. Those with indented lines stay as they are.
func (p *page) text(s string) {
	for i, paragraph := range paragraphs(s) {
		if i > 0 {
			p.line(".PP")
		}
		if !isIndented(paragraph) {
			p.flow(paragraph)
			continue
		}
		p.line(".nf")
		for line := range strings.SplitSeq(paragraph, "\n") {
			p.line(roff(line))
		}
		p.line(".fi")
	}
}

// flow writes words into lines as long as mandoc likes them.
func (p *page) flow(s string) {
	for line := range strings.SplitSeq(fill(strings.Fields(s), "", "", "", 66), "\n") {
		p.line(roff(line))
	}
}

// item writes a term and what it means.
func (p *page) item(term, meaning string) {
	p.line(".TP\n.B " + roff(term))
	p.flow(meaning)
}

func (p *page) examples(list []Example) {
	if len(list) == 0 {
		return
	}
	p.section("EXAMPLES")
	for i, x := range list {
		if i > 0 {
			p.line(".PP")
		}
		p.flow(x[1])
		p.line(".PP\n.RS 4\n.B " + roff(x[0]) + "\n.RE")
	}
}

// roff escapes text for a line of a manual page.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`).Replace(s)
	if strings.HasPrefix(s, ".") {
		s = `\&` + s
	}
	return s
}
