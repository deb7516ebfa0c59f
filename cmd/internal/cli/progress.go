package cli

import (
	"fmt"
	"io"
	"time"
)

// Progress shows on a terminal how far a measurement has come.
type Progress struct {
	w       io.Writer
	on      bool
	columns int // of the terminal
	Prefix  string
}

func NewProgress(w io.Writer) *Progress {
	return &Progress{w: w, on: IsTerminal(w) || columnsOf(w) > 0, columns: columnsOf(w)}
}

// Columns is how many characters a line may have, or 0 if any number.
func (p *Progress) Columns() int { return max(p.columns-1, 0) }

// Show replaces the line. It is shortened to the width of the terminal.
func (p *Progress) Show(format string, args ...any) {
	if p.on {
		text := fmt.Sprintf(format, args...)
		if text != "" {
			text = p.Prefix + text
		}
		if p.columns > 0 {
			text = shorten(text, p.Columns())
		}
		fmt.Fprint(p.w, "\r\x1b[K"+text)
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
