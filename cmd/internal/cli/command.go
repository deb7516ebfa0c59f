package cli

import (
	"errors"
	"flag"
)

// Command is a subcommand.
type Command struct {
	Name     string
	Args     string // what follows the name in the usage line
	Summary  string // one line
	Doc      string
	Examples []Example
	// Names lists what a word in capitals in Args may be, for completion. It may be nil.
	Names func(e *Env) []string
	// Setup declares the flags and returns what runs when they have been read.
	Setup func(f *FlagSet) Action
}

// Example is a command line and what it does.
type Example [2]string

// Action runs a command on its arguments other than flags.
type Action func(e *Env, args []string) error

// find returns the subcommand of a name.
func (e *Env) find(name string) (*Command, error) {
	var names []string
	for _, c := range e.commands {
		if c.Name == name {
			return c, nil
		}
		names = append(names, c.Name)
	}
	return nil, Usage("there is no command %q%s", name, Suggest(name, names))
}

// dispatch runs a command line.
func dispatch(e *Env, args []string) error {
	if len(args) == 0 {
		helpAll(e.Stderr, e.commands)
		return Usage("")
	}
	switch args[0] {
	case completeName:
		return complete(e, args[1:])
	case "-h", "-help", "--help":
		return helpAll(e.Out, e.commands)
	case "-version", "--version":
		args = []string{"version"}
	}
	c, err := e.find(args[0])
	if err != nil {
		return err
	}
	err = c.run(e, args[1:])
	var u *usageError
	if errors.As(err, &u) {
		u.command = c.Name
	}
	return err
}

func CommandNames(list []*Command) []string {
	var names []string
	for _, c := range list {
		names = append(names, c.Name)
	}
	return names
}

// run parses the flags, which may be anywhere among the arguments, and runs the command.
func (c *Command) run(e *Env, args []string) error {
	f, do := c.flags()
	rest, err := f.parseAll(args)
	if errors.Is(err, flag.ErrHelp) {
		return c.help(e.Out)
	}
	if err != nil {
		return err
	}
	if f.wide {
		columns = 0
	}
	return do(e, rest)
}

// flags makes the command's flag set.
func (c *Command) flags() (*FlagSet, Action) {
	f := newFlagSet(c.Name)
	do := c.Setup(f)
	flags := false
	f.VisitAll(func(*flag.Flag) { flags = true })
	if flags {
		f.BoolVar(&f.wide, "wide", false, "print names and tables whole, wider than the terminal too")
	}
	return f, do
}
