package nvrtc

import (
	"reflect"
	"testing"
)

const report = `ptxas info    : 0 bytes gmem
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized in function 'a'
ptxas info    : Compiling entry function 'a' for 'sm_90a'
ptxas info    : Function properties for a
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 8 registers, used 0 barriers
ptxas info    : Compile time = 1.828 ms
ptxas info    : Compiling entry function 'b' for 'sm_90a'
ptxas info    : Function properties for b
ptxas         .     496 bytes stack frame, 576 bytes spill stores, 916 bytes spill loads
ptxas info    : Used 32 registers, used 1 barriers, 496 bytes cumulative stack size, 128 bytes smem
`

func TestUsages(t *testing.T) {
	want := map[string]Usage{"a": {Registers: 8}, "b": {Registers: 32, Spills: 576 + 916, Stack: 496, Shared: 128}}
	if got := Usages(report); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := Usages("no report"); len(got) != 0 {
		t.Errorf("got %+v of nothing", got)
	}
}

func TestLosses(t *testing.T) {
	if got := Losses(report); len(got) != 1 || got[0][:5] != "ptxas" {
		t.Errorf("got %q", got)
	}
	if got := Losses("ptxas info    : 0 bytes gmem"); got != nil {
		t.Errorf("got %q of nothing", got)
	}
}

func TestQuotePTX(t *testing.T) {
	const log = "ptxas application ptx input, line 2; error   : Unknown\n" +
		"ptxas application ptx input, line 9; error   : x\n"
	const want = "ptxas application ptx input, line 2; error   : Unknown\n  foo.bar;\n" +
		"ptxas application ptx input, line 9; error   : x\n"
	if got := quotePTX(log, ".version 9\n  foo.bar;\n"); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
