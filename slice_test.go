package fusec_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
)

// TestSliceOfNothing: a slice without elements has to start inside its axis, or at the end of it, as any slice, whether it is
// constant, what becomes of it, and whatever the passes make of it.
func TestSliceOfNothing(t *testing.T) {
	const text = `fusec graph 1 {
 x = input : f32[3,2]
 i = input : i64
 c = const[value=%d] : i64
 %%11 = slice[axis=0 size=0 step=1] x %s @ "model.go:7"
 %%12 = unary[fn=exp] %%11
 %%13 = reduce[fn=sum axes=[0]] %%12
 output y = %s
}
`
	x := tensorOf(t, []float32{1, 2, 3, 4, 5, 6}, 3, 2)
	for _, output := range []string{"%11", "%12", "%13"} {
		for _, start := range []string{"i", "c"} {
			for at, fits := range map[int64]bool{-1: false, 0: true, 3: true, 4: false, 1 << 40: false} {
				g, err := graph.Parse("slice", []byte(fmt.Sprintf(text, at, start, output)), nil)
				if err != nil {
					t.Fatal(err)
				}
				for _, opts := range [][]fusec.CompileOption{nil, {fusec.WithoutPass("simplify")}} {
					p, err := fusec.Compile(g, opts...)
					if err == nil {
						i := &graph.Tensor{Type: graph.TypeOf(graph.I64), Data: []int64{at}}
						_, err = p.Run(map[string]*graph.Tensor{"x": x, "i": i})
						p.Close()
					}
					if fits && err != nil {
						t.Errorf("%s at %s = %d: %v", output, start, at, err)
					}
					if !fits && (err == nil || !strings.Contains(err.Error(), "do not fit") || !strings.Contains(err.Error(), "model.go:7")) {
						t.Errorf("%s at %s = %d: error %v", output, start, at, err)
					}
				}
			}
		}
	}
}
