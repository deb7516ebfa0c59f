//go:build !unix

package rendezvous

import "os"

// listenAt does nothing where no sockets are handed on that do not listen.
func listenAt(*os.File) error { return nil }
