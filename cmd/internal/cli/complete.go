package cli

import (
	"embed"
	"flag"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"
)

//go:embed completion
var scripts embed.FS

// CompletionCommand is fusec completion.
var CompletionCommand = &Command{
	Name:    "completion",
	Args:    "bash | zsh | fish",
	Summary: "print the script by which a shell completes commands, flags, their values and models",
	Doc: `
The script asks fusec itself what may follow, so that it never has to be installed again. To have it in every session:

  bash: echo 'source <(fusec completion bash)' >>~/.bashrc
  zsh:  fusec completion zsh >"${fpath[1]}/_fusec"
  fish: fusec completion fish >~/.config/fish/completions/fusec.fish`,
	Examples: []Example{
		{"source <(fusec completion bash)", "in this session of bash"},
		{"source <(fusec completion zsh)", "in this session of zsh"},
		{"fusec completion fish | source", "in this session of fish"},
	},
	Setup: func(*FlagSet) Action {
		return func(e *Env, args []string) error {
			files, err := scripts.ReadDir("completion")
			if err != nil {
				return err
			}
			var shells []string
			for _, f := range files {
				shells = append(shells, strings.TrimPrefix(path.Ext(f.Name()), "."))
			}
			if len(args) != 1 {
				return Usage("which shell? %s", Either(shells))
			}
			if !slices.Contains(shells, args[0]) {
				return Usage("%s", Unknown("shell", args[0], shells))
			}
			text, err := scripts.ReadFile("completion/fusec." + args[0])
			if err != nil {
				return err
			}
			_, err = e.Out.Write(text)
			return err
		}
	},
}

// completeName is the command that scripts of shells call. Users do not: it is in no list.
const completeName = "__complete"

// complete prints what may take the place of the last of the words, which may be empty or a beginning: a line for each
// word, with a tab and its meaning; ":dirs" for folders; ":" and an extension for files, ":" alone for files of any.
func complete(e *Env, words []string) error {
	if len(words) == 0 {
		return nil
	}
	before, current := words[:len(words)-1], words[len(words)-1]
	var list []string
	if len(before) == 0 {
		for _, c := range e.commands {
			list = append(list, c.Name+"\t"+c.Summary)
		}
	} else if c, err := e.find(before[0]); err == nil {
		list = c.complete(e, before[1:], current)
	}
	for _, line := range list {
		if strings.HasPrefix(line, ":") || strings.HasPrefix(line, current) {
			fmt.Fprintln(e.Out, Plain(line))
		}
	}
	return nil
}

// complete is what may follow a command.
func (c *Command) complete(e *Env, before []string, current string) []string {
	f, _ := c.flags()
	var args []string
	for i := 0; i < len(before); i++ {
		w := before[i]
		if w == "--" {
			return c.arguments(e, append(args, before[i+1:]...))
		}
		if !strings.HasPrefix(w, "-") || w == "-" {
			args = append(args, w)
			continue
		}
		if k := f.Lookup(strings.TrimLeft(w, "-")); k != nil && !isBool(k) { // a value follows; --flag=value is no name
			if i++; i == len(before) {
				return f.valuesOf(k, current)
			}
		}
	}
	if !strings.HasPrefix(current, "-") {
		return c.arguments(e, args)
	}
	var list []string
	if name, value, valued := strings.Cut(current, "="); !valued {
		f.VisitAll(func(k *flag.Flag) {
			_, help := flag.UnquoteUsage(k)
			list = append(list, dashed(k.Name)+"\t"+help)
		})
	} else if k := f.Lookup(strings.TrimLeft(name, "-")); k != nil {
		for _, v := range f.valuesOf(k, value) {
			if !strings.HasPrefix(v, ":") {
				v = name + "=" + v
			}
			list = append(list, v)
		}
	}
	return list
}

// valuesOf is what the value of a flag may be: its names, after what of a list is there, or files if its help calls it a
// file.
func (f *FlagSet) valuesOf(k *flag.Flag, current string) (list []string) {
	if known := f.values[k.Name]; known != nil {
		there := current[:strings.LastIndex(current, ",")+1]
		for _, v := range known() {
			if !slices.Contains(strings.Split(there, ","), v) {
				list = append(list, there+v)
			}
		}
		return list
	}
	kind, _ := flag.UnquoteUsage(k)
	return filesOf(kind)
}

// filesOf completes what the help calls model.graph, FILE, NAME=FILE, DIR or folder.
func filesOf(kind string) []string {
	kind = strings.TrimPrefix(kind, "NAME=")
	switch strings.ToLower(kind) {
	case "file":
		return []string{":"}
	case "dir", "folder":
		return []string{":dirs"}
	case "model.graph":
		return []string{":dirs", ":.graph", ":.onnx", ":.fuse"}
	}
	if ext := path.Ext(kind); len(ext) > 1 {
		return []string{":dirs", ":" + ext}
	}
	return nil
}

// arguments is what may follow args, by the command's usage line: alternatives of words such as matmul, files such as
// model.graph, and names in capitals, which the command lists.
func (c *Command) arguments(e *Env, args []string) (list []string) {
	for _, usage := range c.usages() {
		var places []string
		for _, place := range strings.Fields(usage) {
			if place = strings.Trim(place, "[]"); place != "flags" {
				places = append(places, strings.TrimSuffix(place, "..."))
			}
		}
		for strings.Contains(usage, "...") && len(places) <= len(args) { // the last may be repeated
			places = append(places, places[len(places)-1])
		}
		if len(places) <= len(args) {
			continue
		}
		fits := true
		for i, a := range args {
			fits = fits && (!isWord(places[i]) || a == places[i])
		}
		switch place := places[len(args)]; {
		case !fits:
		case isWord(place):
			list = append(list, place)
		case filesOf(place) != nil:
			list = append(list, filesOf(place)...)
		case place == strings.ToUpper(place) && c.Names != nil:
			list = append(list, c.Names(e)...)
		}
	}
	return list
}

// isWord reports whether a place of a usage line is a word to be written as it is.
func isWord(place string) bool { return word.MatchString(place) }

var word = regexp.MustCompile(`^[a-z][a-z-]*$`)
