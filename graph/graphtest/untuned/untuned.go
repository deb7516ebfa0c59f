// Package untuned, imported by a test, has the programs of its process, and of those that it starts, ignore what fusec tune has
// measured for the user.
package untuned

import "os"

func init() { os.Setenv("FUSEC_UNTUNED", "1") }
