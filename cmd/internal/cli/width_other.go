//go:build !unix

package cli

import "os"

// terminalColumns is the width of a terminal in characters, or 0 if it does not tell.
func terminalColumns(*os.File) int { return 0 }
