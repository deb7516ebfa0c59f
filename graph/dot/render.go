package dot

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"fusec/graph/dot/internal/layoutcache"

	graphviz "github.com/goccy/go-graphviz"
)

func init() { layoutcache.Restore() }

// MaxRendered bounds the nodes that [Render] lays out. Larger pictures take minutes and are not readable.
const MaxRendered = 1500

// TooLargeError says that a picture has too many nodes to be laid out in process.
type TooLargeError struct{ Nodes int }

// Error implements error.
func (e *TooLargeError) Error() string {
	return fmt.Sprintf("the picture has %d nodes; SVG and PNG are made of at most %d: "+
		"print DOT instead and lay it out with Graphviz (dot -Tsvg, or sfdp -Tsvg if that takes too long), or ask for less detail",
		e.Nodes, MaxRendered)
}

// layoutMu guards the layout engine, of which the process has one instance.
var layoutMu sync.Mutex

// Render lays out a graph in the DOT language and returns it as SVG or PNG. It does not need an installed Graphviz.
// Fonts are part of the program, so a PNG is the same on every machine.
func Render(src []byte, f Format) ([]byte, error) {
	switch f {
	case FormatDOT:
		return src, nil
	case FormatSVG:
		return svg(src)
	case FormatPNG:
		b, err := svg(src)
		if err != nil {
			return nil, err
		}
		return rasterise(b)
	}
	return nil, fmt.Errorf("DOT is rendered as svg or png, not as %q", f)
}

// svg lays out src.
func svg(src []byte) ([]byte, error) {
	layoutMu.Lock()
	defer layoutMu.Unlock()
	ctx := context.Background()
	engine, err := graphviz.New(ctx)
	if err != nil {
		return nil, fmt.Errorf("starting the layout engine: %w", err)
	}
	// Close reports every error since the process started, also those of other pictures, so its result is ignored.
	defer func() { _ = engine.Close() }()
	g, err := graphviz.ParseBytes(src)
	if err != nil {
		return nil, fmt.Errorf("reading DOT: %w", err)
	}
	defer func() { _ = g.Close() }()
	nodes, err := g.NodeNum()
	if err != nil {
		return nil, fmt.Errorf("reading DOT: %w", err)
	}
	if nodes > MaxRendered {
		return nil, &TooLargeError{nodes}
	}
	var b bytes.Buffer
	if err := engine.Render(ctx, g, graphviz.SVG, &b); err != nil {
		return nil, fmt.Errorf("laying out: %w", err)
	}
	if b.Len() == 0 {
		return nil, fmt.Errorf("laying out: the engine gave no picture")
	}
	return b.Bytes(), nil
}
