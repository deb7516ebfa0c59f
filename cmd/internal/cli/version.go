package cli

import (
	"runtime/debug"
)

// Version is the module's version, and the revision if it was built from a work tree.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	if v == "" || v == "(devel)" {
		v = "devel"
	}
	if revision, modified := Revision(); v == "devel" && revision != "" {
		v += " " + revision[:min(12, len(revision))]
		if modified {
			v += " with changes"
		}
	}
	return v
}

// Revision is the commit that this program was built from, and whether the work tree had changes; empty if the build does
// not tell.
func Revision() (commit string, modified bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			commit = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return commit, modified
}

// NoArguments refuses arguments of a command that takes only flags.
func NoArguments(args []string) error {
	if len(args) > 0 {
		return Usage("unexpected argument %q", args[0])
	}
	return nil
}
