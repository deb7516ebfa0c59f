package main

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

var versionCommand = &command{
	name:    "version",
	summary: "print the version",
	doc:     "The version of fusec, of the Go that built it, and the platform.",
	setup: func(*flagSet) action {
		return func(e *env, args []string) error {
			if err := noArguments(args); err != nil {
				return err
			}
			fmt.Fprintf(e.out, "fusec %s, %s, %s/%s\n", version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		}
	},
}

// version is the module's version, and the revision if it was built from a work tree.
func version() string {
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

// noArguments refuses arguments of a command that takes only flags.
func noArguments(args []string) error {
	if len(args) > 0 {
		return usage("unexpected argument %q", args[0])
	}
	return nil
}
