package board

import (
	"embed"
	"fmt"
	"strings"

	"fusec/fpga/isa"
)

// Family is a family of devices, with the tools that know it.
type Family string

// The families. For 7-series devices only synthesis is supported.
const (
	ICE40   Family = "ice40"
	ECP5    Family = "ecp5"
	Series7 Family = "xc7"
)

// Board is a device with pins, and the overlay that fits it.
type Board struct {
	Name    string
	Summary string // one line
	Family  Family
	Device  string // as the tools name it
	Package string
	Speed   string // ECP5's speed grade
	Clock   int    // Hz at the clock pin
	Baud    int    // of the serial line
	Pins    string // the file in pins/
	Target  float64
	Config  isa.Config
	Seed    int // of the placement that met the target
}

//go:embed pins
var pins embed.FS

// Boards lists the boards, smallest first.
func Boards() []Board {
	return []Board{
		{Name: "hx8k", Summary: "Lattice iCE40-HX8K breakout board, 7680 cells, no multipliers", Family: ICE40, Device: "hx8k",
			Package: "ct256",
			Clock:   12_000_000, Baud: 1_000_000, Pins: "hx8k.pcf", Target: 85, Seed: 2, Config: overlay("hx8k")},
		{Name: "ecp5-85f", Summary: "Lattice ECP5-85F on a ULX3S, 84k cells, 156 multipliers", Family: ECP5, Device: "85k",
			Package: "CABGA381", Speed: "6",
			Clock: 25_000_000, Baud: 1_000_000, Pins: "ulx3s.lpf", Target: 75, Seed: 1, Config: overlay("ecp5")},
		{Name: "xc7", Summary: "AMD 7-series: resources by synthesis, no bitstream", Family: Series7, Clock: 100_000_000,
			Baud: 1_000_000, Config: overlay("sim16")},
	}
}

// overlay is a configuration that isa names.
func overlay(name string) isa.Config {
	c, err := isa.Overlay(name)
	if err != nil {
		panic(err) // the boards' tests find every one
	}
	return c
}

// Find is the board of a name; the error lists those that there are.
func Find(name string) (Board, error) {
	var names []string
	for _, b := range Boards() {
		if b.Name == name {
			return b, nil
		}
		names = append(names, b.Name)
	}
	return Board{}, fmt.Errorf("no board is called %q; there are %s", name, strings.Join(names, ", "))
}
