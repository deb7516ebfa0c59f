package cli

import (
	"fmt"
	"io"
	"time"
)

// Progress shows on a terminal how far a measurement has come.
type Progress struct {
	w  io.Writer
	on bool
}

func NewProgress(w io.Writer) *Progress { return &Progress{w, IsTerminal(w)} }

// Show replaces the line.
func (p *Progress) Show(format string, args ...any) {
	if p.on {
		fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
	}
}

// Ticking shows what text says, each second, until the function that it returns is called: that one clears the line.
func (p *Progress) Ticking(text func() string) (stop func()) {
	if !p.on {
		return func() {}
	}
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			p.Show("%s", text())
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() {
		close(ended)
		<-gone
		p.Done()
	}
}

// Done clears the line.
func (p *Progress) Done() { p.Show("") }
