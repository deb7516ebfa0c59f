package graph_test

import (
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
)

// parse reads operations written in the text form, with operands of many types above them.
func parse(statements string) (*graph.Graph, error) {
	return graph.Parse("m.graph", []byte(`fusec graph 1 {
s = input : f32
v = input : f32[3]
m = input : f32[2,3]
n = input : f32[3,5]
d = input : f64[2,3]
c = input : f32[2,4,5,7]
w = input : f32[6,2,3,3]
i = input : i64
ints = input : i32[2,3]
ix = input : i64[2,2]
b = input : bool[2,3]
v4 = input : f32[4]
batch = input : f32[5,1,2,3]
`+statements+"\n}"), nil)
}

func TestTypeRules(t *testing.T) {
	const window = "kernel=[3,2] stride=[2,1] pad=[1,0,1,0]"
	const moves = "stride=[2,2] dilation=[1,1] pad=[1,1,1,1]"
	const forward = "attention[window=0] m m m\n%14 = result[index=1] %13\n%15 = " // out, lse
	const back = "reshape[shape=[5,3]] n\n%98 = "                                  // a weight to go from 5 to 3
	const steps = "input : f32[3,2,8]\n%97 rw = input : f32[2,8]\n%98 st = input : f32[2,2]\n%99 = "
	const between = "input : f32[3,3,1,7]\n%95 sb = input : f32[7]\n%96 sp = input : f32[1,1,7,2]\n%97 se = input : f32[1,1,7,7]\n"
	const integers = "input : u8[2,4,5,7]\n%97 wi = input : i8[6,4,3,3]\n%98 cw = input : i8[6,4,3]\n%99 = "
	const offsets = "pack_weights[trans=false to=f16] n\n%97 sc = input : f32[1,5]\n%98 = "
	const padded = "%99 = separable_conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] low=0 high=6] "
	const separable = between + padded
	tested := map[string]bool{}
	for _, c := range []struct{ expr, want string }{
		{"input : f32[2]", "f32[2]"},
		{"param : f32[2]", "f32[2]"},
		{"state : f32[2]", "f32[2]"},
		{"const[value=[1,2]] : i64[2]", "i64[2]"},
		{"unary[fn=tanh] m", "f32[2,3]"},
		{"unary[fn=neg] ints", "i32[2,3]"},
		{"unary[fn=not] b", "bool[2,3]"},
		{"unary[fn=neg] b", "! neg needs numbers, not bool"},
		{"unary[fn=not] m", "! not needs bool, not f32"},
		{"unary[fn=exp] ints", "! exp needs f32 or f64, not i32"},
		{"binary[fn=add] m m", "f32[2,3]"},
		{"binary[fn=lt] m s", "bool[2,3]"},
		{"binary[fn=sub] s m", "f32[2,3]"},
		{"binary[fn=and] b b", "bool[2,3]"},
		{"binary[fn=eq] b b", "bool[2,3]"},
		{"binary[fn=and] m m", "! and needs integers or bool, not f32"},
		{"binary[fn=add] b b", "! add needs numbers, not bool"},
		{"binary[fn=add] m v", "! shapes [2,3] and [3] differ"},
		{"binary[fn=add] m d", "! element types f32 and f64 differ"},
		{"select b m s", "f32[2,3]"},
		{"custom[fn=test_softsign] m", "f32[2,3]"},
		{"custom[fn=\"test_softsign\"] d", "f64[2,3]"},
		{"custom[fn=test_blend] s m m", "f32[2,3]"},
		{"custom[fn=test_blend] m m", "! test_blend takes 3 operands, not 2"},
		{"custom[fn=test_blend] m m d", "! element types f32 and f64 differ"},
		{"custom[fn=test_blend] m m v", "! shapes [2,3] and [3] differ"},
		{"custom[fn=test_softsign] ints", "! test_softsign needs f32 or f64, not i32"},
		{"custom[fn=Softsign] m", "! \"Softsign\" is no name of a custom function"},
		{"custom m", "! no custom function \"\" is registered"},
		{"select m m m", "! the condition is f32, not bool"},
		{"select b m d", "! element types f32 and f64 differ"},
		{"select b m v", "! shapes [2,3] and [3] differ"},
		{"cast[to=i32] m", "i32[2,3]"},
		{"cast[to=f8] m", "! unknown element type"},
		{"all_reduce[fn=mean] m", "f32[2,3]"},
		{"all_reduce[fn=max] ints", "i32[2,3]"},
		{"all_reduce[fn=mean] ints", "! mean of i32"},
		{"all_reduce[fn=sum] b", "! sum of bool"},
		{"all_reduce[fn=prod] m", "! prod is not a reduction of a group: want sum, mean, max or min"},
		{"all_reduce[fn=sum over=data parts=0] m", "f32[2,3]"},
		{"reduce_scatter[fn=sum axis=0 parts=2] m", "f32[1,3]"},
		{"reduce_scatter[fn=sum axis=1 parts=2] m", "! axis 1 of [2,3] is not a multiple of 2 participants"},
		{"all_gather[axis=1 parts=4] m", "f32[2,12]"},
		{"all_gather[axis=2 parts=4] m", "! axis 2 of a tensor of rank 2"},
		{"all_to_all[split=0 join=1 parts=2] m", "f32[1,6]"},
		{"all_to_all[split=0 join=0 parts=2] m", "f32[2,3]"},
		{"part[axis=1 over=tensor parts=3] b", "bool[2,1]"},
		{"permute[shift=-1 parts=3] ints", "i32[2,3]"},
		{"broadcast_from[root=1 parts=2] m", "f32[2,3]"},
		{"broadcast_from[root=2 parts=2] m", "! root 2 of 2 participants"},

		{"matmul m n", "f32[2,5]"},
		{"matmul[trans_a=true trans_b=true] n m", "f32[5,2]"},
		{"matmul[trans_a=true] m m", "f32[3,3]"},
		{"matmul batch n", "f32[5,1,2,5]"},
		{"matmul[trans_b=true] batch c", "! contracts 3 with 7"},
		{"matmul m m", "! contracts 3 with 2"},
		{"matmul[trans_b=true] c batch", "! contracts 7 with 3"},
		{"reshape[shape=[3,1,3,2]] batch", "! has 30 elements"},
		{"reshape[shape=[2,5,1,3]] batch\n%99 = matmul[trans_b=true] batch %13",
			"! batch axes of [5,1,2,3] and [2,5,1,3] do not broadcast"},
		{"matmul m v", "! rank 2 or more"},
		{"matmul m d", "! element types"},
		{"matmul[trans_b=true] ints ints", "! needs f32, f64, bf16 or f16, not i32"},
		{"matmul[trans_b=true] c w", "! contracts 7 with 3"},
		{"matmul[trans_a=true] c c", "f32[2,4,7,7]"},
		{"conv2d[stride=[1,2] dilation=[1,1] pad=[1,1,1,1] groups=2] c w", "f32[2,6,5,4]"},
		{integers + "conv2d[stride=[1,2] dilation=[1,1] pad=[1,1,1,1] groups=1] %13 wi", "f32[2,6,5,4]"},
		{integers + "conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1 winograd=2] %13 wi", "! f32"},
		{integers + "conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] wi %13", "! element types i8 and u8 differ"},
		{integers + "conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] %13 cw", "! rank 4"},
		{"conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] c w", "! channels do not fit"},
		{"conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=0] c w", "! channels do not fit"},
		{"conv2d[stride=[1,1] dilation=[9,9] pad=[0,0,0,0] groups=2] c w", "! does not fit into 5 elements"},
		{"conv2d[stride=[1,1] dilation=[1,9] pad=[0,0,0,0] groups=2] c w", "! does not fit into 7 elements"},
		{"conv2d[stride=[0,1] dilation=[1,1] pad=[0,0,0,0] groups=2] c w", "! is not valid"},
		{"conv2d[stride=[1,1] dilation=[4611686018427387904,1] pad=[0,0,0,0] groups=2] c w", "! is not valid"},
		{"conv2d[stride=[1] dilation=[1,1] pad=[0,0,0,0] groups=2] c w", "! should have 2 values"},
		{"conv2d[stride=[1,1] dilation=[1,1] pad=[0] groups=2] c w", "! should have 4 values"},
		{"conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=2] c m", "! needs rank 4"},
		{"cast[to=f64] w\n%99 = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=2] c %13", "! element types f32 and f64 differ"},
		{"input : f32[3,3,7,2]\n%99 = conv2d[stride=[1,2] dilation=[1,1] pad=[1,1,1,1] groups=1 layout=nhwc] c r", "f32[2,4,3,2]"},
		{"input : f32[3,3,7,2]\n%99 = conv2d[stride=[1,2] dilation=[1,1] pad=[1,1,1,1] groups=2 layout=nhwc] c r",
			"! channels do not fit"},
		{"input : f32[3,3,7,2]\n%99 = conv2d[stride=[1,2] dilation=[1,1] pad=[1,1,1,1] groups=2 layout=nchwc] c r",
			"! want one of nchw, nhwc"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=2 h=6 w=5] r w", "f32[1,4,6,5]"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=2 h=5 w=6] r w", "f32[1,4,5,6]"},
		{"input : f32[1,3,3,2]\n%98 q = input : f32[3,3,7,2]\n%99 = conv2d_transpose[" + moves + " groups=1 h=5 w=5 layout=nhwc] r q",
			"f32[1,5,5,7]"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=2 h=7 w=5] r w",
			"! on an image of 7×5 the filters have 4×3 positions, not 3×3"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=4 h=5 w=5] r w",
			"! channels do not fit: gradient [1,6,3,3], filters [6,2,3,3], 4 groups"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=0 h=5 w=5] r w", "! channels do not fit"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=2 h=0 w=5] r w", "! does not fit into 0 elements"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=2 h=-9 w=5] r w", "! does not fit into -9 elements"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[" + moves + " groups=2 h=9223372036854775807 w=5] r w", "! "},
		{"input : f32[1,6,3,3]\n%99 = conv2d_transpose[stride=[1073741824,1] dilation=[1,1] pad=[0,0,0,0] groups=2 h=1073741826 " +
			"w=1073741826] r w", "! "},
		{"conv2d_transpose[" + moves + " groups=2 h=5 w=5] c w", "! channels do not fit"},
		{"conv2d_transpose[" + moves + " groups=2 h=5 w=5] m w", "! needs rank 4"},
		{"input : f32[1,4,6,5]\n%98 q = input : f32[1,6,3,3]\n%99 = conv2d_filter_grad[" + moves + " groups=2 kh=3 kw=3] r q",
			"f32[6,2,3,3]"},
		{"input : f32[1,6,5,3]\n%98 q = input : f32[1,3,3,2]\n%99 = conv2d_filter_grad[" + moves + " groups=1 kh=4 kw=3 layout=nhwc] r q",
			"f32[4,3,3,2]"},
		{"input : f32[1,4,6,5]\n%98 q = input : f32[1,6,3,3]\n%99 = conv2d_filter_grad[" + moves + " groups=2 kh=1 kw=3] r q",
			"! on an image of 6×5 the filters have 4×3 positions, not 3×3"},
		{"input : f32[1,4,6,5]\n%98 q = input : f32[1,6,3,3]\n%99 = conv2d_filter_grad[" + moves + " groups=2 kh=0 kw=3] r q",
			"! is not valid"},
		{"input : f32[1,4,6,5]\n%98 q = input : f32[1,6,3,3]\n%99 = conv2d_filter_grad[" + moves + " groups=3 kh=3 kw=3] r q",
			"! images or channels do not fit"},
		{"input : f32[1,6,3,3]\n%99 = conv2d_filter_grad[" + moves + " groups=1 kh=3 kw=3] c r", "! images or channels do not fit"},
		{"input : f32[1,4,6,5]\n%99 = conv2d_filter_grad[" + moves + " groups=2 kh=3 kw=3] r m", "! needs rank 4"},
		{"cast[to=i32] c\n%99 = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] %13 %13",
			"! needs f32, f64, bf16 or f16, not i32"},
		{"conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=2] m w", "! needs rank 4"},

		{"reduce[fn=sum axes=[1]] m", "f32[2]"},
		{"reduce[fn=mean axes=[0,1]] m", "f32[]"},
		{"reduce[fn=max axes=[0] keep=true] ints", "i32[1,3]"},
		{"reduce[fn=mean axes=[0]] ints", "! mean of i32"},
		{"reduce[fn=sum axes=[0]] b", "! sum of bool"},
		{"reduce[fn=sum axes=[2]] m", "! axis 2 of a tensor of rank 2"},
		{"reduce[fn=sum axes=[1,1]] m", "! axis 1 is given twice"},

		{"reshape[shape=[3,2]] m", "f32[3,2]"},
		{"reshape[shape=[5]] m", "! has 6 elements, [5] has 5"},
		{"reshape[shape=[-1]] m", "! is negative"},
		{"transpose[perm=[1,0]] m", "f32[3,2]"},
		{"transpose[perm=[0]] m", "! permutation [0] of a tensor of rank 2"},
		{"transpose[perm=[0,0]] m", "! axis 0 is given twice"},
		{"broadcast[shape=[4,2,3]] m", "f32[4,2,3]"},
		{"broadcast[shape=[3]] m", "! does not broadcast"},
		{"broadcast[shape=[2,4]] m", "! does not broadcast"},
		{"broadcast[shape=[2,-3]] m", "! is negative"},
		{"broadcast[shape=[3]] s", "f32[3]"},
		{"slice[axis=1 size=2 step=2] m i", "f32[2,2]"},
		{"slice[axis=1 size=0 step=1] m i", "f32[2,0]"},
		{"slice[axis=1 size=3 step=2] m i", "! 3 elements, 2 apart, do not fit into 3"},
		{"slice[axis=1 size=4294967297 step=4294967296] m i", "! do not fit into 3"},
		{"slice[axis=2 size=1 step=1] m i", "! axis 2"},
		{"slice[axis=1 size=1 step=1] m s", "! start is f32[], not an i64 scalar"},
		{"unslice[axis=1 size=5 step=2] m i", "f32[2,5]"},
		{"unslice[axis=1 size=4 step=2] m i", "! do not fit into 4"},
		{"unslice[axis=-1 size=4 step=2] m i", "! axis -1"},
		{"update_slice[axis=1] m m i", "f32[2,3]"},
		{"slice[axis=1 size=2 step=1] m i\n%99 = update_slice[axis=1] m %13 i", "f32[2,3]"},
		{"update_slice[axis=2] m m i", "! axis 2 of a tensor of rank 2"},
		{"update_slice[axis=1] m n i", "! differ elsewhere than in axis 1"},
		{"update_slice[axis=1] m ints i", "! differ elsewhere than in axis 1"},
		{"update_slice[axis=0] n m i", "! differ elsewhere"},
		{"update_slice[axis=0] m m s", "! start is f32[], not an i64 scalar"},
		{"concat[axis=0] m m m", "f32[6,3]"},
		{"concat[axis=1] m n", "! differ elsewhere than in axis 1"},
		{"concat[axis=2] m m", "! axis 2"},
		{"pad[lo=[1,0] hi=[0,2]] m", "f32[3,5]"},
		{"pad[lo=[1] hi=[0,2]] m", "! should have 2 values"},
		{"pad[lo=[-1,0] hi=[0,2]] m", "! padding [-1,0] and [0,2]"},
		{"im2col[" + window + " dilation=[1,1]] c", "f32[2,3,6,24]"},
		{"im2col[" + window + " dilation=[1,1]] m", "! needs rank 4"},
		{"im2col[kernel=[9,9] stride=[1,1] pad=[0,0,0,0] dilation=[1,1]] c", "! does not fit"},
		{"im2col[kernel=[1073741824,1073741824] stride=[1,1] pad=[1073741824,1073741824,0,0] dilation=[1,1]] c", "! are too large"},
		{"im2col[" + window + " dilation=[1,1]] c\n%99 = col2im[" + window + " dilation=[1,1] h=5 w=7] %13", "f32[2,4,5,7]"},
		{"col2im[" + window + " dilation=[1,1] h=5 w=7] c", "! are not those of an image of 5×7 (want [n,3,6,6·c])"},
		{"col2im[" + window + " dilation=[1,1] h=5 w=7] m", "! needs rank 4"},
		{"col2im[" + window + " dilation=[1,1] h=0 w=7] c", "! does not fit into 0 elements"},
		{"copy b", "bool[2,3]"},
		{"quantize[to=i4] m s", "i4[2,3]"},
		{"quantize[to=i8 axis=1] m v", "i8[2,3]"},
		{"quantize[to=u8 axis=1 block=2] m m", "! scales [2,3] for [2,3]; requires [2,2]"},
		{"quantize[to=i64] m s", "! to i64: it makes"},
		{"quantize[to=i8 axis=2] m v", "! axis 2"},
		{"quantize[to=i8 axis=1 block=-1] m v", "! blocks of -1"},
		{"quantize[to=i8] d s", "! a scale of f32 for f64"},
		{"quantize[to=i8] m s s", "! a zero point of f32 for i8"},
		{"quantize[to=f8e4m3 axis=1 block=1] m m", "f8e4m3[2,3]"},
		{"quantize[to=i8] m s\n%98 = dequantize %13 s", "f32[2,3]"},
		{"quantize[to=f8e5m2] m s\nzero = quantize[to=f8e5m2] s s\n%98 = dequantize %13 s zero", "! f8e5m2 has no zero point"},
		{"quantize[to=i4 axis=1] m v\nzero = quantize[to=i4] s s\n%98 = dequantize[axis=1] %13 v zero",
			"! zero points [] for scales [3]"},
		{"dequantize m s", "! of f32: it reads"},
		{"dequantize ints i", "! scale: needs f32 or f64"},
		{"quantize[to=i4] m s\n%98 = pack_weights[trans=false] %13", "i4[1,1,32,8]"},
		{"quantize[to=i8] n s\n%98 = pack_weights[trans=true] %13", "i8[1,8,32]"},
		{"pack_weights[trans=false to=bf16] m", "bf16[1,8,32]"},
		{"pack_weights[trans=false to=bf16] d", "! from f64 to bf16"},
		{"pack_weights[trans=false] m", "! panels of f32: they are of i4, i8, bf16, f16"},
		{"pack_weights[trans=false] v", "! needs rank 2"},
		{"input : f32[64,3]\n%98 = pack_weights[trans=true to=bf16] %13 %13 m", "bf16[5,8,32]"},
		{"input : f32[3,32]\n%98 = pack_weights[trans=false to=f16] %13 n", "f16[2,8,32]"},
		{"input : f32[3,32]\n%98 = pack_weights[trans=false to=f16] n %13", "! operands 0 to 0 have 5 columns, and another follows"},
		{"input : f32[3,32]\n%98 = pack_weights[trans=false to=f16] %13 m", "! have 3 and 2 rows"},
		{"input : f32[3,32]\n%98 = pack_weights[trans=false to=f16] %13 d", "! are not matrices of one type"},
		{"input : f32[3,32]\n%98 = pack_weights[trans=false to=f16 deep=true] %13 n", "f16[2,1,32,4,1,8]"},
		{"input : f32[0,549755813888]\n%98 = pack_weights[trans=false to=f16] %13 %13 %13", "! more than"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=5] m %13", "f32[2,5]"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=5] m %13 v", "! scales f32[3]; requires f32[1,5]"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=5 block=4] m %13 v", "! blocks of 4"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=5 block=8] m %13", "! blocks of 8 without scales"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=50] m %13", "! panels [1,8,32] for weights [3,50]"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=-1] m %13", "! -1 columns"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=5] d %13", "! needs an operand of f32"},
		{"matmul_panels[columns=5] m n", "! panels of f32"},
		{offsets + "matmul_panels[columns=5] m %13 sc sc", "f32[2,5]"},
		{offsets + "matmul_panels[columns=5] m %13 sc m", "! offsets f32[2,3]; requires f32[1,5]"},
		{"quantize[to=i8] n s\n%97 sc = input : f32[1,5]\n%98 = pack_weights[trans=false quads=true] %13\n" +
			"%99 = matmul_panels[columns=5 integers=true] m %98 sc sc", "! in a product of integers"},
		{"pack_weights[trans=false to=f16] n\n%97 ub = input : u8[2,3]\n%98 = matmul_panels[columns=5 integers=true] ub %13",
			"! is multiplied as integers, by panels of i8 without scales"},
		{"quantize[to=i8] n s\n%98 = pack_weights[trans=false quads=true] %13", "i8[1,2,32,4]"},
		{"pack_weights[trans=false to=f16 quads=true] n", "! quads of f16"},
		{"quantize[to=i8] n s\n%98 = pack_weights[trans=false deep=true quads=true] %13", "! quads of i8"},
		{"quantize[to=i8] n s\n%98 = pack_weights[trans=false quads=true] %13\n%99 = matmul_panels[columns=5 integers=true] m %98",
			"f32[2,5]"},
		{"pack_weights[trans=false to=f16] n\n%98 = matmul_panels[columns=5 integers=true] m %13",
			"! products of integers with panels of f16"},
		{"quantize[to=i8] n s\n%98 = pack_weights[trans=true deep=true] %13", "i8[1,1,16,4,2,8]"},
		{"quantize[to=f8e4m3] n s\n%98 = pack_weights[trans=false deep=true] %13", "f8e4m3[1,1,16,4,2,8]"},
		{"pack_weights[trans=false to=f16 deep=true] n", "f16[1,1,32,4,1,8]"},
		{"pack_weights[trans=false deep=true] n", "! deep panels of f32: they are of i4, i8, f8e4m3, f8e5m2, bf16, f16"},
		{separable + "c r sb sp", "f32[2,4,5,2]"},
		{separable + "c r sb sp se sb", "f32[2,4,5,2]"},
		{separable + "c r sb sp se", "! filters of expand without a bias"},
		{separable + "ints r sb sp", "! needs f32 or f64, not i32"},
		{separable + "m r sb sp", "! depthwise: needs rank 4"},
		{separable + "c w sb sp", "! depthwise: channels do not fit"},
		{separable + "c r v sp", "! the bias of depthwise: needs f32[7], not f32[3]"},
		{separable + "c r sb w", "! pointwise: channels do not fit"},
		{separable + "c r sb sp sp v", "! the bias of expand: needs f32[2], not f32[3]"},
		{separable + "c r sb sp w v", "! expand: channels do not fit"},
		{between + "%98 si = input : f32[3,3,7,7]\n" + padded + "c r sb sp si sb",
			"! expand: filters [3,3,7,7] are not of 1×1"},
		{between + "%98 si = input : f32[2,1,7,2]\n" + padded + "c r sb si",
			"! pointwise: filters [2,1,7,2] are not of 1×1"},
		{between + "%98 si = input : f32[3,3,1,14]\n" + padded + "c si sb sp",
			"! depthwise: 14 filters for 7 channels"},
		{between + "%98 si = input : f32[2,4,5,0]\n" + padded + "si r sb sp",
			"! depthwise: no channels"},
		{between + "%99 = separable_conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] low=1 high=0] c r sb sp", "! bounds 1 and 0"},
		{between + "%99 = separable_conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] low=nan high=0] c r sb sp", "! bounds NaN and 0"},
		{between + "%99 = separable_conv2d[stride=[1,1] dilation=[9,1] pad=[1,1,1,1] low=-inf high=inf] c r sb sp", "! does not fit"},

		{"gather[axis=1] m ix", "f32[2,2,2]"},
		{"gather[axis=0] m i", "f32[3]"},
		{"gather[axis=2] m ix", "! axis 2"},
		{"gather[axis=0] m m", "! indices are f32, not i32 or i64"},
		{"reshape[shape=[1,1,1,1,1,2,2]] ix\n%98 = gather[axis=0] m %13", "f32[1,1,1,1,1,2,2,3]"},
		{"reshape[shape=[1,1,1,1,1,1,2,2]] ix\n%98 = gather[axis=0] m %13", "! more than 8 axes"},
		{"scatter_add[axis=0 size=9] ints m", "f32[9]"},
		{"scatter_add[axis=1 size=9] i m", "f32[2,9,3]"},
		{"scatter_add[axis=9223372036854775807 size=9] ints m", "! do not hold indices"},
		{"scatter_add[axis=0 size=9] ix m", "! do not hold indices"},
		{"scatter_add[axis=1 size=9] ix m", "! do not hold indices"},
		{"scatter_add[axis=0 size=9] m m", "! indices are f32"},
		{"scatter_add[axis=0 size=9] ints b", "! sums of bool"},

		{"top_k[k=2] batch", "f32[5,1,2,2]"},
		{"top_k[k=0] m\n%97 = result[index=1] %13", "i64[2,0]"},
		{"top_k[k=4] m", "! k = 4 is outside 0..3"},
		{"top_k[k=-1] m", "! k = -1 is outside 0..3"},
		{"top_k[k=1] ints", "! needs f32 or f64"},
		{"top_k[k=1] s", "! rank 1 or more"},
		{"sample m s i s i i", "i64[2]"},
		{"sample v s i s i i", "i64[]"},
		{"sample s s i s i i", "! rank 1 or more"},
		{"sample ints s i s i i", "! needs f32 or f64"},
		{"sample m i i s i i", "! temperature is i64[]: want f32, one for all rows or of shape [2]"},
		{"sample m s i v i i", "! top_p is f32[3]"},
		{"sample m s i s i s", "! step is f32[]: want i64"},
		{"slice[axis=1 size=0 step=1] m i\n%98 = sample %13 s i s i i", "! rows of 0 logits"},
		{"route[k=2 capacity=0] m", "bool[2,3]"},
		{"route[k=0 expert_choice=true capacity=2] m\n%97 = result[index=1] %13", "i64[3]"},
		{"route[k=0 capacity=0] m", "! k = 0 is outside 1..3"},
		{"route[k=4 capacity=0] m", "! k = 4 is outside 1..3"},
		{"route[k=1 capacity=-1] m", "! capacity -1 is negative"},
		{"route[k=0 capacity=0 expert_choice=true] m", "! needs a capacity"},
		{"route[k=1 capacity=0] b", "! needs f32 or f64"},
		{"route[k=1 capacity=0] s", "! rank 1 or more"},
		{back + "moe[top_k=2 experts=3 activation=relu] m m n n n %13 %13 %13", "f32[2,3]"},
		{back + "moe[top_k=0 experts=3 activation=relu] v v n n n %13 %13 %13", "f32[3]"},
		{back + "moe[top_k=0 experts=3 activation=relu] m m n n n %13 %13 %13\n%97 = result[index=1] %98", "i64[3]"},
		{back + "moe[top_k=0 experts=3 activation=relu gated=true] m m n n n n n n %13 %13 %13", "f32[2,3]"},
		{"moe[top_k=0 experts=0 activation=relu] m m n n", "! 0 experts"},
		{"moe[top_k=-1 experts=3 activation=relu] m m n n", "! of which a token uses -1"},
		{"moe[top_k=0 experts=3 activation=not] m m n n", "! not is no activation"},
		{"moe[top_k=0 experts=3 activation=relu] m m n n", "! needs 8 operands with these attributes, not 4"},
		{"moe[top_k=0 experts=4611686018427387904 activation=relu bias=true] m m n n", "! operands with these attributes, not 4"},
		{"moe[top_k=0 experts=1 activation=relu] m m n n", "! the gates are f32[2,3], not f32[2,1]"},
		{"moe[top_k=0 experts=1 activation=relu] m s n n", "! the gates are f32[], not f32[2,1]"},
		{back + "moe[top_k=0 experts=3 activation=relu] m m v n n %13 %13 %13", "! w1 has shape [3], not 2 axes"},
		{back + "moe[top_k=0 experts=3 activation=relu stacked=true] m m n %13", "! w1 has shape [3,5], not 3 axes"},
		{back + "moe[top_k=0 experts=3 activation=relu] m m n n n %13 n %13", "! w2 of expert 1 is f32[3,5], not f32[5,3]"},
		{back + "moe[top_k=0 experts=3 activation=relu] m m n n %13 %13 %13 %13", "! w1 of expert 2 is f32[5,3], not f32[3,5]"},
		{"moe[top_k=0 experts=1 activation=relu] ints m n n", "! needs f32, f64, bf16 or f16, not i32"},
		{"moe[top_k=0 experts=1 activation=relu] s m n n", "! rank 1 or more"},
		{back + "moe_grad[top_k=0 experts=3 activation=relu] m m n n n %13 %13 %13 m", "f32[2,3]"},
		{back + "moe_grad[top_k=0 experts=3 activation=relu] m m n n n %13 %13 %13 m\n%97 = result[index=2] %98", "f32[3,5]"},
		{back + "moe_grad[top_k=0 experts=3 activation=relu] m m n n n %13 %13 %13 n", "! dy is f32[3,5], not f32[2,3]"},
		{"moe_grad[top_k=0 experts=3 activation=relu] m m n n m", "! needs 8 operands"},

		{"dropout[p=0.5] m i", "f32[2,3]"},
		{"dropout[p=1] m i", "! probability 1 is outside [0,1)"},
		{"dropout[p=nan] m i", "! probability NaN"},
		{"dropout ints i", "! needs f32 or f64"},
		{"dropout m s", "! the seed is f32[], not an i64 scalar"},
		{"random[dist=normal b=1] i : f32[2]", "f32[2]"},
		{"random[dist=normal b=1] i : i32[2]", "! needs f32 or f64"},
		{"random[dist=normal b=1] s : f32[2]", "! the seed is"},

		{"squared_norm m s d", "f64[]"},
		{"squared_norm m ints", "! operand 1 is i32, not a float"},
		{"batch_norm c v4 v4 v4 v4", "f32[2,4,5,7]"},
		{"batch_norm c v4 v4 v4 v", "! needs f32[4], not f32[3]"},
		{"batch_norm v v v v v", "! needs [n,c,...]"},
		{"batch_norm ints v v v v", "! needs f32 or f64"},
		{"attention[window=0] m m m", "f32[2,3]"},
		{"attention[window=0] batch batch batch\n%97 = result[index=1] %13", "f32[5,1,2]"},
		{"attention[window=0] m m", "! takes 3 to 9 operands"},
		{"attention[window=0 has_mask=true] m m m", "! needs 4 operands"},
		{"attention[window=0 has_mask=true] m m m d", "! the mask is f64, not bool or f32"},
		{"attention[window=0 has_mask=true] m m m b", "! mask [2,3] does not broadcast to [2,2]"},
		{"attention[window=0 has_lengths=true] m m m i", "f32[2,3]"},
		{"attention[window=0 has_lengths=true] batch batch batch i", "! the lengths are i64[], not i32[5] or i64[5]"},
		{"attention[window=0 tail=true] m m m", "! needs lengths"},
		{"attention[window=-1] m m m", "! window -1 is negative"},
		{"attention[window=0 dropout=0.5] m m m i", "f32[2,3]"},
		{"attention[window=0 dropout=0.5] m m m s", "! the seed is"},
		{"attention[window=0 dropout=1] m m m i", "! outside [0,1)"},
		{"attention[window=0] ints ints ints", "! needs f32, f64, bf16 or f16, not i32"},
		{"attention[window=0] m d m", "! element types f32, f64 and f32 differ"},
		{"attention[window=0] v v v", "! of the same rank of 2 or more"},
		{"attention[window=0] m c m", "! of the same rank of 2 or more"},
		{"attention[window=0] n m m", "! differ in the last axis"},
		{"attention[window=0] m n m", "! differ in the last axis"},
		{"attention[window=0] c c batch", "! differ elsewhere"},
		{"rope[base=10] v4 i", "! needs positions and their elements as the last two axes, not shape [4]"},
		{"reshape[shape=[3,2]] m\n%98 = rope[base=10] %13 i", "f32[3,2]"},
		{"reshape[shape=[3,2]] m\n%98 = rope[base=10] %13 i v4", "! the divisors are f32[4], not f64[1]"},
		{"rope[base=10] m i", "! rotates pairs of elements, but the last axis of [2,3] has 3"},
		{"rope[base=10] ix i", "! needs f32 or f64"},
		{"reshape[shape=[3,2]] m\n%98 = rope[base=10] %13 s", "! start is f32[], not an i64 scalar"},
		{"reshape[shape=[3,2]] m\n%98 = rope %13 i", "! the base 0 is not a positive number"},
		{"reshape[shape=[3,2]] m\n%98 = rope[base=inf] %13 i", "! the base +Inf is not a positive number"},
		{steps + "recurrence[cell=lstm] r rw st st", "f32[3,2,2]"},
		{steps + "recurrence[cell=lstm reverse=true] r rw st st\n%96 = result[index=1] %99", "f32[3,2,2]"},
		{steps + "recurrence[cell=lstm] r rw st", "! a cell lstm takes 4 operands, not 3"},
		{steps + "recurrence[cell=gru] r rw st", "! operand 0 of a cell gru is f32[3,2,8]; with r f32[2,8] it has to be f32[3,2,6]"},
		{steps + "recurrence[cell=tanh] m m m", "! do not have three and two axes"},
		{steps + "recurrence[cell=tanh] ints m m", "! needs f32 or f64"},
		{"input : f32[0,2,2]\n%98 st = input : f32[2,2]\n%99 = recurrence[cell=relu] r st st", "! have no steps or no state"},
		{"input : f32[3,2,2]\n%98 st = input : f32[2,2]\n%99 = recurrence_grad[cell=tanh] r st st r r", "f32[3,2,2]"},
		{"input : f32[3,2,2]\n%98 st = input : f32[2,2]\n%99 = recurrence_grad[cell=tanh] r st st r st",
			"! operand 4 is f32[2,2], not f32[3,2,2]"},
		{steps + "recurrence_grad[cell=lstm] r rw st r r", "! the gradient of a cell lstm takes 8 operands, not 5"},
		{forward + "attention_grad[window=0] m m m %13 %14 m", "f32[2,3]"},
		{forward + "attention_grad[window=0 has_dlse=true] m m m %13 %14 m %14", "f32[2,3]"},
		{forward + "attention_grad[window=0] m m m %13 %14 m\n%16 = result[index=2] %15", "f32[2,3]"},
		{forward + "attention_grad[window=0] m m m %13 %14", "! takes 6 to 10 operands"},
		{forward + "attention_grad[window=0 has_mask=true] m m m %13 %14 m", "! needs 7 operands"},
		{forward + "attention_grad[window=0 has_dlse=true] m m m %13 %14 m", "! needs 7 operands"},
		{forward + "attention_grad[window=-1] m m m %13 %14 m", "! window -1 is negative"},
		{forward + "attention_grad[window=0] m m m n %14 m", "! out is f32[3,5], not f32[2,3]"},
		{forward + "attention_grad[window=0] m m m %13 m m", "! lse is f32[2,3], not f32[2]"},
		{forward + "attention_grad[window=0] m m m %13 %14 d", "! dout is f64[2,3], not f32[2,3]"},
		{forward + "attention_grad[window=0 has_dlse=true] m m m %13 %14 m v", "! dlse is f32[3], not f32[2]"},
		{"pool[fn=max " + window + "] c", "f32[2,4,3,6]"},
		{"pool[fn=max " + window + "] m", "! needs rank 4"},
		{"pool[fn=max " + window + " layout=nhwc] c", "f32[2,2,4,7]"},
		{"input : f32[3,3,7,2]\n%99 = pool_grad[fn=max kernel=[1,1] stride=[1,2] pad=[0,0,0,0] layout=nhwc] r r",
			"! dy is f32[3,3,7,2], not f32[3,3,4,2]"},
		{"pool[fn=max kernel=[1073741824,1] stride=[1,1] pad=[1073741824,0,0,0]] c", "! is larger than the image"},
		{"pool[fn=max kernel=[9,9] stride=[1,1] pad=[0,0,0,0]] c", "! does not fit"},
		{"pool[fn=max kernel=[1,1] stride=[1,1] pad=[0,0,0,0]] ints", "! needs f32 or f64"},
		{"pool_grad[fn=max kernel=[1,1] stride=[1,1] pad=[0,0,0,0]] c c", "f32[2,4,5,7]"},
		{"pool_grad[fn=max " + window + "] c c", "! dy is f32[2,4,5,7], not f32[2,4,3,6]"},
		{"pool_grad[fn=max " + window + "] m m", "! needs rank 4"},

		{"batch_norm c v4 v4 v4 v4\n%97 = result[index=2] %13", "f32[4]"},
		{"result[index=1] m", "! has 1 results; index 1 is outside 1..0"},
		{"fusion[anchor=row kind=reduce] m {\nx = input : f32[2,3]\ny = reduce[fn=sum axes=[0]] x\noutput y = y\n}", "f32[3]"},
		{"fusion[anchor=none kind=reduce] m {\nx = input : f32[2]\noutput y = x\n}",
			"! operand 0 is f32[2,3], the body's input is f32[2]"},
		{"fusion[anchor=none kind=reduce] {\nx = input : f32[2]\noutput y = x\n}", "! more inputs than the 0 operands"},
		{"fusion[anchor=none kind=reduce] {\n}", "! body has 0 outputs"},
		{"host[name=f] m s : f64[7]", "f64[7]"},
	} {
		expr := c.expr
		name := lastOp(expr)
		tested[name] = true
		if strings.HasPrefix(expr, "input") || strings.HasPrefix(expr, "param") || strings.HasPrefix(expr, "state") {
			expr = "%13 r = " + expr
		} else {
			expr = "%13 = " + expr
		}
		g, err := parse(expr)
		if bad, ok := strings.CutPrefix(c.want, "! "); ok {
			if err == nil || !strings.Contains(err.Error(), bad) || !strings.Contains(err.Error(), name) {
				t.Errorf("%s\nerror %v\nwant one with %q that names %s", c.expr, err, bad, name)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.expr, err)
		} else if got := g.Nodes[len(g.Nodes)-1].Type.String(); got != c.want {
			t.Errorf("%s: type %s, want %s", c.expr, got, c.want)
		}
	}
	for _, c := range slices.Concat(cases.All(graph.F32), cases.Refused()) { // those that state what the rule gives
		if c.Results == nil && c.Refusal == "" {
			continue
		}
		tested[c.Op.OpName()] = true
		switch g, err := c.Graph(); {
		case c.Refusal != "":
			if err == nil || !strings.Contains(err.Error(), c.Refusal) || !strings.Contains(err.Error(), c.Op.OpName()) {
				t.Errorf("%s: error %v\nwant one with %q", c.Name, err, c.Refusal)
			}
		case err != nil:
			t.Errorf("%s: %v", c.Name, err)
		default:
			if types, err := graph.ResultTypes(c.Op, g.Outputs[0].Node.Args); err != nil || !slices.Equal(types, c.Results) {
				t.Errorf("%s: types %v, want %v (%v)", c.Name, types, c.Results, err)
			}
		}
	}
	for _, info := range graph.Ops() {
		if !tested[info.Name] {
			t.Errorf("the type rule of %s is not tested", info.Name)
		}
	}
}

// lastOp is the operation of the last node outside bodies.
func lastOp(statements string) string {
	s := statements[strings.LastIndex(statements, "\n%")+1:]
	if _, after, ok := strings.Cut(s, " = "); ok && s[0] == '%' {
		s = after
	}
	return s[:strings.IndexAny(s, " [")]
}

// TestTypeRulesOfBadOps has operations that the text form cannot write.
func TestTypeRulesOfBadOps(t *testing.T) {
	g := graph.New("")
	m, err := g.Add(graph.Input{Type: graph.TypeOf(graph.F32, 2, 3)})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		op   graph.Op
		args []*graph.Node
		want string
	}{
		{graph.Input{}, nil, "has no element type"},
		{graph.Input{Type: graph.Type{DType: 99}}, nil, "has no element type"},
		{graph.Input{Type: graph.TypeOf(graph.F32, -1)}, nil, "negative"},
		{graph.Const{}, nil, "has no value"},
		{graph.Unary{Fn: 200}, []*graph.Node{m}, "unknown function 200"},
		{graph.Binary{Fn: 200}, []*graph.Node{m, m}, "unknown function 200"},
		{graph.Reduce{Fn: 200}, []*graph.Node{m}, "unknown reduction 200"},
		{graph.Cast{}, []*graph.Node{m}, "no element type is given"},
		{graph.Fusion{}, nil, "has no body"},
		{graph.Copy{}, []*graph.Node{nil}, "operand 0 is missing"},
		{graph.Copy{}, nil, "copy takes 1 operand, not 0"},
		{graph.BatchNorm{}, nil, "takes 5 operands"},
		{graph.Concat{}, nil, "takes at least 1 operand"},
		{alienOp{}, nil, "is not in the table"},
		{nil, nil, "is not in the table"},
		{graph.Pad{Lo: graph.IntsOf(0, 1<<40), Hi: graph.IntsOf(0, 1<<40)}, []*graph.Node{m}, "more than"},
	} {
		if _, err := g.Add(c.op, c.args...); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%#v: error %v, want one with %q", c.op, err, c.want)
		}
	}
	if len(g.Nodes) != 1 {
		t.Error("a node was added in spite of an error")
	}
}

type alienOp struct{}

func (alienOp) OpName() string { return "strange" }

func TestTable(t *testing.T) {
	for _, info := range graph.Ops() {
		if info.Doc == "" || info.Infer == nil || info.Proto == nil {
			t.Errorf("%s lacks a doc, a type rule or a prototype", info.Name)
		}
		if info.MinArgs != 0 && info.Operands == "" {
			t.Errorf("%s does not name its operands", info.Name)
		}
		if n := len(strings.Split(info.Operands, ", ")); info.MaxArgs > 0 && n != info.MaxArgs {
			t.Errorf("%s takes %d operands and names %d", info.Name, info.MaxArgs, n)
		}
		if (info.Class == graph.ClassComposite) != (info.Decompose != nil) {
			t.Errorf("%s: class %v, decomposition %v", info.Name, info.Class, info.Decompose != nil)
		}
		if graph.OpByName(info.Name) != info || graph.InfoOf(info.Proto) != info || graph.ClassOf(info.Proto) != info.Class {
			t.Errorf("%s is not found", info.Name)
		}
	}
	if graph.OpByName("strange") != nil || graph.InfoOf(alienOp{}) != nil || graph.ClassOf(alienOp{}) != graph.ClassFusion {
		t.Error("an operation was found that is not there")
	}
	if !graph.Elementwise(graph.Cast{}) || graph.Elementwise(graph.Copy{}) || !graph.IsView(graph.Reshape{}) ||
		graph.IsView(graph.Copy{}) {
		t.Error("wrong classes")
	}
}
