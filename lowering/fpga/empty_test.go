package fpga

import (
	"strings"
	"testing"

	"fusec/graph"
)

// TestWithoutElements leaves products with an empty operand or result to the processor.
func TestWithoutElements(t *testing.T) {
	for _, d := range [][3]int{{4, 0, 8}, {0, 8, 8}, {4, 8, 0}, {0, 0, 0}} {
		e, p := compiled(t, built(t, func(b *graph.Builder) {
			x, w := b.Input("x", f32(d[0], d[1])), b.Param("w", f32(d[1], d[2]))
			b.Output("y", b.MatMul(x, w, false, false))
		}))
		if err := e.Run(); err != nil {
			t.Errorf("%v: %v", d, err)
		}
		for i := range p.Launches {
			if err := e.l.launches[i].refusal; err == nil || !strings.Contains(err.Error(), "without elements") {
				t.Errorf("%v: launch %d is refused with %v", d, i, err)
			}
		}
	}
}
