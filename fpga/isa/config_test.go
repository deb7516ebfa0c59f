package isa

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
)

// randomConfig draws a configuration that Check lets through.
func randomConfig(r *rand.Rand) Config {
	pow := func(low, high int) int { return 1 << (low + r.IntN(high-low+1)) }
	for {
		c := Config{Rows: pow(1, 6), Cols: pow(1, 6), WordBytes: pow(1, 4), XWords: pow(0, 16), WWords: pow(0, 16),
			YWords: pow(0, 16),
			Params: pow(0, 16), Tables: r.IntN(5), AccBits: 24 + 8*r.IntN(2), SerialMul: r.IntN(2) == 0,
			Norms:    r.IntN(2) == 0,
			AddrBits: 16 + r.IntN(17)}
		if r.IntN(2) == 0 {
			c.KeyBlock, c.HeadDim, c.QPanels = pow(1, 7), pow(1, 8), pow(0, 4)
		}
		if r.IntN(2) == 0 {
			c.Experts, c.ListLen, c.Tokens, c.TopK = pow(0, 8), pow(0, 15), pow(0, 16), 1+r.IntN(4)
		}
		if c.Check() == nil {
			return c
		}
	}
}

// TestShape packs configurations into the shape registers and back.
func TestShape(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	configs := append([]Config(nil), overlays...)
	for range 500 {
		configs = append(configs, randomConfig(r))
	}
	for _, want := range configs {
		got, err := FromShape(want.Shape())
		want.Name = ""
		if err != nil || got != want {
			t.Errorf("%+v comes back as %+v, %v", want, got, err)
		}
	}
	for range 500 { // random answers of a broken board cause no panic
		if c, err := FromShape([4]uint32{r.Uint32(), r.Uint32(), r.Uint32(), r.Uint32()}); err == nil &&
			c.Check() != nil {
			t.Errorf("%+v is no overlay", c)
		}
	}
}

func TestCheck(t *testing.T) {
	good := overlays[0]
	without, least := good, good
	without.Experts, without.ListLen, without.Tokens, without.TopK = 0, 0, 0, 0
	least.Experts, least.ListLen, least.Tokens, least.TopK = 2, 2, 1, 1
	for _, c := range []Config{good, without, least} {
		if err := c.Check(); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		want   string
		change func(*Config)
	}{
		{"Rows", func(c *Config) { c.Rows = 3 }},
		{"Rows", func(c *Config) { c.Rows = 128 }},
		{"Cols", func(c *Config) { c.Cols = 0 }},
		{"WordBytes", func(c *Config) { c.WordBytes = 32 }},
		{"Cols: want a multiple of WordBytes", func(c *Config) { c.WordBytes = 16 }},
		{"XWords", func(c *Config) { c.XWords = 1 << 17 }},
		{"WWords", func(c *Config) { c.WWords = -1 }},
		{"YWords", func(c *Config) { c.YWords = 1000 }},
		{"Params", func(c *Config) { c.Params = 0 }},
		{"Tables", func(c *Config) { c.Tables = 5 }},
		{"AccBits", func(c *Config) { c.AccBits = 16 }},
		{"AddrBits", func(c *Config) { c.AddrBits = 33 }},
		{"KeyBlock: want", func(c *Config) { c.KeyBlock = 4 }},
		{"KeyBlock: attention needs", func(c *Config) { c.Rows = 4 }},
		{"KeyBlock: attention needs", func(c *Config) { c.AccBits = 24 }},
		{"HeadDim", func(c *Config) { c.HeadDim = 512 }},
		{"HeadDim", func(c *Config) { c.QPanels = 3 }},
		{"Experts", func(c *Config) { c.ListLen = 1 << 16 }},
		{"Experts", func(c *Config) { c.Tokens = 100 }},
		{"Experts", func(c *Config) { c.Experts, c.TopK = 1, 1 }},
		{"Experts", func(c *Config) { c.ListLen = 1 }},
		{"TopK", func(c *Config) { c.TopK = 5 }},
		{"TopK", func(c *Config) { c.Experts, c.TopK = 2, 4 }},
		{"SerialMul", func(c *Config) { c.KeyBlock, c.SerialMul = 0, true }},
	} {
		bad := good
		c.change(&bad)
		if err := bad.Check(); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("overlay %q: %s", good.Name,
			c.want)) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
}

func TestOverlays(t *testing.T) {
	for _, name := range Overlays() {
		c, err := Overlay(name)
		if err != nil || c.Name != name || c.Check() != nil {
			t.Errorf("%s: %+v, %v, %v", name, c, err, c.Check())
		}
	}
	if _, err := Overlay("none"); err == nil || !strings.Contains(err.Error(),
		`no overlay is called "none": there are sim8`) {
		t.Error(err)
	}
}

// TestHeader looks at what the hardware includes: each macro once, none without a value.
func TestHeader(t *testing.T) {
	for _, c := range overlays {
		text := c.Header()
		seen := map[string]string{}
		for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
			f := strings.SplitN(line, " ", 3)
			if len(f) != 3 || f[0] != "`define" || !strings.HasPrefix(f[1], "FX_") || f[2] == "" {
				t.Fatalf("line %q", line)
			}
			if old, twice := seen[f[1]]; twice {
				t.Errorf("%s is %s and %s", f[1], old, f[2])
			}
			seen[f[1]] = f[2]
		}
		for name, want := range map[string]string{"FX_ROWS": fmt.Sprint(c.Rows),
			"FX_ADDR_BITS": fmt.Sprint(c.AddrBits), "FX_OP_ROUTE": "4'd8",
			"FX_LOAD_ADDR": "63:32", "FX_GEMM_WORDS": "111:96", "FX_VECTOR_KIND": "122:120", "FX_SPACE_W": "3'd2",
			"FX_REG_STATUS":   "8'h0c",
			"FX_ERR_WATCHDOG": "4'd6", "FX_COUNTERS": fmt.Sprint(int(Counters)), "FX_ID": "32'h66786f31"} {
			if seen[name] != want {
				t.Errorf("%s: %s is %q, want %q", c.Name, name, seen[name], want)
			}
		}
	}
}
