package main

import (
	"fmt"
	"fusec/cmd/internal/cli"
	"runtime"
)

// versionReport is the JSON form of fusec version.
type versionReport struct {
	Schema  string `json:"schema"` // fusec.version/1
	Version string `json:"version"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

var versionCommand = &cli.Command{
	Name:    "version",
	Summary: "print the version",
	Doc:     "The version of fusec, of the Go that built it, and the platform.",
	Setup: func(f *cli.FlagSet) cli.Action {
		asJSON := f.Bool("json", false, "print it as JSON")
		return func(e *cli.Env, args []string) error {
			if err := cli.NoArguments(args); err != nil {
				return err
			}
			if *asJSON {
				return cli.WriteJSON(e.Out, versionReport{"fusec.version/1", cli.Version(), runtime.Version(), runtime.GOOS,
					runtime.GOARCH})
			}
			fmt.Fprintf(e.Out, "fusec %s, %s, %s/%s\n", cli.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		}
	},
}
