package main

import (
	"fmt"
	"fusec/cmd/internal/cli"
	"runtime"
)

var versionCommand = &cli.Command{
	Name:    "version",
	Summary: "print the version",
	Doc:     "The version of fusec, of the Go that built it, and the platform.",
	Setup: func(*cli.FlagSet) cli.Action {
		return func(e *cli.Env, args []string) error {
			if err := cli.NoArguments(args); err != nil {
				return err
			}
			fmt.Fprintf(e.Out, "fusec %s, %s, %s/%s\n", cli.Version(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return nil
		}
	},
}
