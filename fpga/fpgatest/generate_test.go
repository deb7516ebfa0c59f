package fpgatest

import (
	"testing"

	"fusec/fpga/isa"
)

// configs are the small overlays of the tests, each with a special feature: the words' width, arrays that are not
// square, the multipliers' kind, engines that are left out.
var configs = []isa.Config{
	{Name: "all", Patches: true, Rows: 4, Cols: 4, WordBytes: 4, XWords: 128, WWords: 128, YWords: 128, Params: 64, Tables: 2,
		AccBits:  32,
		KeyBlock: 16, HeadDim: 16, QPanels: 2, Norms: true, Experts: 8, ListLen: 16, Tokens: 64, TopK: 2, AddrBits: 20},
	{Name: "wide", Patches: true, Rows: 2, Cols: 16, WordBytes: 16, XWords: 64, WWords: 64, YWords: 64, Params: 128, Tables: 1,
		AccBits: 32,
		Norms:   true, Experts: 4, ListLen: 32, Tokens: 64, TopK: 3, AddrBits: 24},
	{Name: "serial", Patches: true, Rows: 4, Cols: 4, WordBytes: 2, XWords: 64, WWords: 64, YWords: 64, Params: 32, Tables: 1,
		AccBits:   24,
		SerialMul: true, AddrBits: 16},
	{Name: "tall", Patches: true, Rows: 4, Cols: 2, WordBytes: 2, XWords: 128, WWords: 128, YWords: 128, Params: 64, Tables: 2,
		AccBits: 32,
		Norms:   true, Experts: 8, ListLen: 16, Tokens: 64, TopK: 2, AddrBits: 20},
	{Name: "flat", Rows: 2, Cols: 8, WordBytes: 8, XWords: 64, WWords: 32, YWords: 32, Params: 32, Tables: 4,
		AccBits: 24, AddrBits: 18},
	{Name: "heads", Patches: true, Rows: 8, Cols: 8, WordBytes: 8, XWords: 128, WWords: 256, YWords: 128, Params: 64, AccBits: 32,
		KeyBlock: 64, HeadDim: 64, QPanels: 2, AddrBits: 20},
}

// TestRandomPrograms makes programs and runs them on the model, whose engines run concurrently: they have to end well,
// without a race, and with what their commands leave one after the other.
func TestRandomPrograms(t *testing.T) {
	for _, c := range configs {
		seen := map[isa.Op]int{}
		for seed := range uint64(20) {
			p, err := Random(seed, c, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := p.Model(); err != nil {
				t.Fatalf("%v\n%v", err, p)
			}
			for _, c := range p.Commands {
				seen[c.Op()]++
			}
		}
		t.Log(c.Name, seen)
	}
}
