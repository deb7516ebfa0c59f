package cuda

import (
	"strings"
	"testing"

	"fusec/graph"
)

// TestAcrossPlan tells which products of f32 take B along n, and how their operands get there.
func TestAcrossPlan(t *testing.T) {
	strict, tf32 := Config{Chip: H200}, Config{Chip: H200, Precision: TF32}
	for _, c := range []struct {
		name           string
		cfg            Config
		linear         linearCase
		reason         string
		pitchA, pitchB int
		bm, splits     int
		writes, meets  bool
	}{
		{name: "tf32", cfg: tf32, linear: linearCase{m: 512, k: 2048, n: 4096}, bm: 128, splits: 1},
		{name: "tf32, shares that meet", cfg: tf32, linear: linearCase{m: 512, k: 4096, n: 4096}, bm: 256, splits: 2, meets: true},
		{name: "tf32, few columns that meet", cfg: tf32, linear: linearCase{m: 512, k: 4096, n: 2048}, bm: 128, splits: 2,
			meets: true},
		{name: "tf32, a row more", cfg: tf32, linear: linearCase{m: 257, k: 4096, n: 4096}, bm: 128, splits: 1},
		{name: "tf32, large", cfg: tf32, linear: linearCase{m: 8192, k: 4096, n: 16384}, bm: 256, splits: 1},
		{name: "tf32, long", cfg: tf32, linear: linearCase{m: 256, k: 8192, n: 512}, bm: 128, splits: 16},
		{name: "tf32, A across", cfg: tf32, linear: linearCase{m: 1024, k: 514, n: 1024, transA: true}, pitchA: 516, bm: 128,
			splits: 1},
		{name: "tf32, A across and few columns", cfg: tf32, linear: linearCase{m: 1024, k: 512, n: 128, transA: true},
			reason: "too long"},
		{name: "tf32, B along k", cfg: tf32, linear: linearCase{m: 512, k: 256, n: 1024, transB: true},
			reason: "cannot read B"},
		{name: "f32", cfg: strict, linear: linearCase{m: 512, k: 4096, n: 4096}, bm: 128, splits: 1},
		{name: "f32, both across", cfg: strict, linear: linearCase{m: 2048, k: 1026, n: 4098, transA: true, transB: true},
			pitchA: 1028, pitchB: 4100, bm: 128, splits: 1},
		{name: "f32, few columns", cfg: strict, linear: linearCase{m: 8192, k: 512, n: 128}, bm: 64, splits: 1, writes: true},
		{name: "f32, half a tile of columns", cfg: strict, linear: linearCase{m: 65536, k: 512, n: 64}, bm: 256, splits: 1,
			writes: true},
		{name: "few rows", cfg: tf32, linear: linearCase{m: 32, k: 256, n: 512}, reason: "too small"},
		{name: "empty", cfg: tf32, linear: linearCase{m: 512, k: 0, n: 256}, reason: "empty"},
		{name: "f64", cfg: tf32, linear: linearCase{d: graph.F64, m: 512, k: 256, n: 1024}, reason: "not of f32"},
		{name: "Ampere", cfg: Config{Chip: ChipOf(80)}, linear: linearCase{m: 512, k: 256, n: 512}, reason: "no wgmma"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.linear.d == 0 {
				c.linear.d = graph.F32
			}
			c.linear.out = c.linear.d
			f, args, results := c.linear.fusion(t)
			m, _, _ := planned(t, f, args, results, c.cfg)
			p, reason := m.acrossPlan()
			if (c.reason == "") != (reason == "") || !strings.Contains(reason, c.reason) {
				t.Fatalf("refused because %q, want %q", reason, c.reason)
			}
			if p == nil {
				return
			}
			if p.a.pitch != c.pitchA || p.b.pitch != c.pitchB {
				t.Errorf("copied to pitches of %d and %d, want %d and %d", p.a.pitch, p.b.pitch, c.pitchA, c.pitchB)
			}
			if !p.a.kInner || p.b.kInner {
				t.Error("k must be the inner axis of A and not of B")
			}
			if p.tile.bm != c.bm || p.tile.splits != c.splits || p.tile.writes != c.writes || p.tile.meets != c.meets {
				t.Errorf("takes %+v, want %d rows, %d shares of k, that it writes: %v, and that they meet: %v", p.tile, c.bm, c.splits,
					c.writes, c.meets)
			}
			if s := p.tile.shared(); s > c.cfg.Chip.Shared {
				t.Errorf("%+v needs %d bytes of shared memory", p.tile, s)
			}
		})
	}
}
