package gemm

import "testing"

// TestCutPanels cuts products for blocks in registers of all processors, panels that divide no power of two among them.
func TestCutPanels(t *testing.T) {
	for _, block := range [][2]int{{6, 16}, {12, 32}, {8, 12}, {8, 6}, {4, 4}, {5, 7}, {1, 1}} {
		for _, m := range []int{1, 5, 64, 100, 1000} {
			for _, n := range []int{1, 12, 64, 72, 75, 100, 600, 3000} {
				for _, k := range []int{1, 100, 1000} {
					cfg := plain[float32](m, n, k)
					b := cut(&cfg, &kernel[float32]{mr: block[0], nr: block[1]})
					if b.mc < 1 || b.mc%block[0] != 0 || b.nc < 1 || b.nc%block[1] != 0 || b.tileCols < 1 || b.tileCols%block[1] != 0 ||
						b.rowBlocks*b.mc < m || b.kc < 1 {
						t.Errorf("%d×%d×%d by blocks of %v: %+v", m, n, k, block, b)
					}
				}
			}
		}
	}
}
