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
	var revision, modified string
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			modified = s.Value
		}
	}
	if v == "devel" && revision != "" {
		v += " " + revision[:min(12, len(revision))]
		if modified == "true" {
			v += " with changes"
		}
	}
	return v
}

// NoArguments refuses arguments of a command that takes only flags.
func NoArguments(args []string) error {
	if len(args) > 0 {
		return Usage("unexpected argument %q", args[0])
	}
	return nil
}
