package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
)

// command is a subcommand.
type command struct {
	name     string
	args     string // what follows the name in the usage line
	summary  string // one line
	doc      string
	examples []example
	// setup declares the flags and returns what runs when they have been read.
	setup func(f *flagSet) action
}

// example is a command line and what it does.
type example struct{ line, does string }

// action runs a command on its arguments other than flags.
type action func(e *env, args []string) error

// commands lists the subcommands in the order of the help.
func commands() []*command {
	return []*command{dumpCommand, explainCommand, runCommand, compileCommand, demoCommand, trainCommand, generateCommand, benchCommand, tuneCommand, fpgaCommand, doctorCommand,
		versionCommand, helpCommand()}
}

// find returns the subcommand of a name.
func find(name string) (*command, error) {
	var names []string
	for _, c := range commands() {
		if c.name == name {
			return c, nil
		}
		names = append(names, c.name)
	}
	return nil, usage("there is no command %q%s", name, suggest(name, names))
}

// dispatch runs a command line.
func dispatch(e *env, args []string) error {
	if len(args) == 0 {
		return usage("a command is missing: %s", strings.Join(commandNames(), ", "))
	}
	switch args[0] {
	case "-h", "-help", "--help":
		return helpAll(e.out)
	case "-version", "--version":
		args = []string{"version"}
	}
	c, err := find(args[0])
	if err != nil {
		return err
	}
	err = c.run(e, args[1:])
	var u *usageError
	if errors.As(err, &u) {
		u.command = c.name
	}
	return err
}

func commandNames() []string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return names
}

// run parses the flags, which may stand anywhere among the arguments, and runs the command.
func (c *command) run(e *env, args []string) error {
	f, do := c.flags()
	rest, err := f.parseAll(args)
	if errors.Is(err, flag.ErrHelp) {
		return c.help(e.out)
	}
	if err != nil {
		return err
	}
	return do(e, rest)
}

// flags makes the command's flag set.
func (c *command) flags() (*flagSet, action) {
	f := newFlagSet(c.name)
	return f, c.setup(f)
}

// help prints the command's help.
func (c *command) help(w io.Writer) error {
	f, _ := c.flags()
	fmt.Fprintf(w, "fusec %s: %s\n\nusage:\n  fusec %s%s\n\n%s\n", c.name, c.summary, c.name, leading(c.args), strings.TrimSpace(c.doc))
	if lines := f.describe(); lines != "" {
		fmt.Fprintf(w, "\nflags:\n%s", lines)
	}
	if len(c.examples) > 0 {
		fmt.Fprint(w, "\nexamples:\n")
		for _, x := range c.examples {
			fmt.Fprintf(w, "  # %s\n  %s\n", x.does, x.line)
		}
	}
	return nil
}
