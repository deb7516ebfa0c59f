package dot

import (
	"fmt"
	"strings"
)

// Format is a format for a stage or a trace.
type Format string

// The formats.
const (
	FormatDOT  Format = "dot"
	FormatSVG  Format = "svg"
	FormatPNG  Format = "png"
	FormatText Format = "text"
	FormatJSON Format = "json"
)

// Formats lists all formats, for usage messages.
func Formats() []Format { return []Format{FormatDOT, FormatSVG, FormatPNG, FormatText, FormatJSON} }

// ParseFormat finds a format by its name.
func ParseFormat(s string) (Format, error) {
	var names []string
	for _, f := range Formats() {
		if string(f) == s {
			return f, nil
		}
		names = append(names, string(f))
	}
	return "", fmt.Errorf("unknown format %q (want %s)", s, strings.Join(names, ", "))
}

// Ext is the file name extension of the format, with its dot.
func (f Format) Ext() string {
	if f == FormatText {
		return ".txt"
	}
	return "." + string(f)
}

// Detail is how much of a graph a picture shows.
type Detail uint8

// The details.
const (
	// Auto is the highest of the others that stays within Options.MaxNodes. Graphs with fusions start at Compact.
	Auto Detail = iota
	// Full draws every node, views and the nodes of bodies included.
	Full
	// Compact draws a launch as one node with its formula and its parameters, and an optimiser as one node.
	Compact
	// Outline shortens the formulas and counts the parameters of a launch.
	Outline
	// Layers draws a layer as one node, or several layers, so that any graph stays within Options.MaxNodes.
	Layers
)

// DefaultMaxNodes is the number of nodes that Auto tries to stay within.
const DefaultMaxNodes = 60

// Options says what to print. The zero value prints DOT with all defaults.
type Options struct {
	Format   Format // FormatDOT if empty
	Detail   Detail
	Expand   bool // draw every repetition of a repeated layer
	Measured bool // print measured times
	// Title names the model in a picture; the graph's name if empty.
	Title    string
	MaxNodes int // DefaultMaxNodes if 0
	Width    int // the tables of a listing fit into so many characters; 0 leaves them whole
}

func (o Options) format() Format {
	if o.Format == "" {
		return FormatDOT
	}
	return o.Format
}

func (o Options) maxNodes() int {
	if o.MaxNodes <= 0 {
		return DefaultMaxNodes
	}
	return o.MaxNodes
}
