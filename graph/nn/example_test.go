package nn_test

import (
	"fmt"
	"log"

	"fusec"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A layer of causal attention with rotary positions, after an RMSNorm and with a residual: the launches that fusec
// makes of it.
func ExampleMultiHeadAttention() {
	g := gorgonia.NewGraph()
	x := gorgonia.NewTensor(g, tensor.Float32, 3, gorgonia.WithShape(4, 16, 64), gorgonia.WithName("x"),
		gorgonia.WithInit(gorgonia.Gaussian(0, 1)))
	gain := gorgonia.NewVector(g, tensor.Float32, gorgonia.WithShape(64), gorgonia.WithName("gain"),
		gorgonia.WithInit(gorgonia.Ones()))
	layer, err := nn.NewMultiHeadAttention(g, tensor.Float32, "attn", 64, 8, 2)
	if err != nil {
		log.Fatal(err)
	}
	layer.Options.Causal = true
	layer.Rotary = &nn.RoPEOptions{}

	h, err := nn.RMSNorm(x, gain, 1e-6)
	if err != nil {
		log.Fatal(err)
	}
	if h, err = layer.Forward(h); err != nil {
		log.Fatal(err)
	}
	y, err := gorgonia.Add(x, h)
	if err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g)
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(y.Value().Shape())
	for _, f := range vm.Fusions() {
		fmt.Println(f.Kind)
	}
	// Output:
	// (4, 16, 64)
	// norm
	// linear
	// rope
	// linear
	// rope
	// linear
	// attention
	// linear
}

// Dropout from a seed drops other elements in each run, and the same on fusec's machine and on Gorgonia's.
func ExampleSeeds() {
	for _, fused := range []bool{false, true} {
		g := gorgonia.NewGraph()
		x := gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(8), gorgonia.WithName("x"),
			gorgonia.WithInit(gorgonia.Ones()))
		seeds := nn.NewSeeds(g, 2026)
		y, err := nn.Dropout(x, 0.5, seeds.Next())
		if err != nil {
			log.Fatal(err)
		}
		var vm gorgonia.VM = gorgonia.NewTapeMachine(g)
		if fused {
			vm = fusec.NewMachine(g)
		}
		for range 2 {
			if err := vm.RunAll(); err != nil {
				log.Fatal(err)
			}
			fmt.Println(y.Value())
			vm.Reset()
		}
		vm.Close()
	}
	// Output:
	// [2  0  0  2  2  2  0  2]
	// [0  2  0  2  2  0  2  0]
	// [2  0  0  2  2  2  0  2]
	// [0  2  0  2  2  0  2  0]
}

// A layer of eight experts, of which each token goes to two, with the losses that train its router and a count to
// watch. The mixture and its gradient are one launch each.
func ExampleNewMoE() {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(256, 16), gorgonia.WithName("x"),
		gorgonia.WithInit(gorgonia.Gaussian(0, 1)))
	layer, err := nn.NewMoE(g, tensor.Float32, "moe", 16, 8, 32, nn.MoEOptions{
		Route:     nn.RouteOptions{K: 2, Capacity: 1.25, Gate: nn.GateOfChosen},
		NoiseSeed: nn.NewSeeds(g, 2026).Next(),
	})
	if err != nil {
		log.Fatal(err)
	}
	y, routing, err := layer.Forward(x)
	if err != nil {
		log.Fatal(err)
	}
	must := gorgonia.Must
	cost := must(gorgonia.Mean(must(gorgonia.Square(must(gorgonia.Sub(y, x))))))
	small := gorgonia.NewConstant(float32(0.01))
	cost = must(gorgonia.Add(cost, must(gorgonia.Mul(small, must(routing.LoadBalance())))))
	cost = must(gorgonia.Add(cost, must(gorgonia.Mul(small, must(routing.ZLoss())))))
	var load gorgonia.Value
	gorgonia.Read(must(routing.Load()), &load)
	if _, err := gorgonia.Grad(cost, layer.Params()...); err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g, gorgonia.BindDualValues(layer.Params()...))
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		log.Fatal(err)
	}
	most := 0
	for _, n := range load.Data().([]int) {
		most = max(most, n)
	}
	fmt.Println("no expert has more than ⌈1.25·2·256/8⌉ tokens:", most <= 80)
	for _, f := range vm.Fusions() {
		if f.Kind == "moe" {
			fmt.Println(f.Kind)
		}
	}
	// Output:
	// no expert has more than ⌈1.25·2·256/8⌉ tokens: true
	// moe
	// moe
}

// Decoding token by token: a run appends its token to the cache in place and attends all before it.
func ExampleKVCache() {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(1, 64), gorgonia.WithName("x"),
		gorgonia.WithInit(gorgonia.Gaussian(0, 1)))
	layer, err := nn.NewMultiHeadAttention(g, tensor.Float32, "attn", 64, 8, 2)
	if err != nil {
		log.Fatal(err)
	}
	layer.Rotary = &nn.RoPEOptions{}
	cache, err := nn.NewKVCache(g, 1024, 1)
	if err != nil {
		log.Fatal(err)
	}
	y, err := layer.Decode(x, cache, "attn")
	if err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g)
	defer vm.Close()
	for range 3 {
		if err := vm.RunAll(); err != nil {
			log.Fatal(err)
		}
		if err := gorgonia.Let(x, y.Value()); err != nil { // in place of what a model would make of it
			log.Fatal(err)
		}
		vm.Reset()
	}
	fmt.Println(cache.Len(), "tokens of", cache.Max())
	for _, f := range vm.Fusions() {
		if f.Kind == "update_slice" {
			fmt.Println(f.Kind, f.Name, f.Bytes, "bytes")
		}
	}
	cache.Reset() // for another sequence
	fmt.Println(cache.Len(), "tokens")
	// Output:
	// 3 tokens of 1024
	// update_slice attn.keys 136 bytes
	// update_slice attn.values 136 bytes
	// 0 tokens
}

// resNet18 is ResNet-18 (He et al., arXiv 1512.03385) for images [n, 3, h, w].
func resNet18(g *gorgonia.ExprGraph, classes int) (nn.Sequential, error) {
	stem, err := nn.NewConv2d(g, tensor.Float32, "stem", 3, 64, 7, nn.Conv2dOptions{Stride: 2, Pad: 3, NoBias: true})
	if err != nil {
		return nil, err
	}
	norm, err := nn.NewBatchNorm(g, tensor.Float32, "stem.norm", 64)
	if err != nil {
		return nil, err
	}
	pool := func(x *gorgonia.Node) (*gorgonia.Node, error) { return nn.MaxPool2d(x, nn.Square(3, 2, 1)) }
	net := nn.Sequential{stem, norm, nn.Func(nn.ReLU), nn.Func(pool)}
	in := 64
	for i, out := range []int{64, 64, 128, 128, 256, 256, 512, 512} {
		block, err := nn.NewBasicBlock(g, tensor.Float32, fmt.Sprintf("block%d", i+1), in, out, out/in)
		if err != nil {
			return nil, err
		}
		net, in = append(net, block), out
	}
	head, err := nn.NewDense(g, tensor.Float32, "head", in, classes)
	return append(net, nn.Func(nn.GlobalAvgPool2d), head), err
}

// ResNet-18 on an image, in evaluation.
func ExampleSequential() {
	g := gorgonia.NewGraph()
	net, err := resNet18(g, 1000)
	if err != nil {
		log.Fatal(err)
	}
	x := gorgonia.NewTensor(g, tensor.Float32, 4, gorgonia.WithShape(1, 3, 64, 64), gorgonia.WithName("images"),
		gorgonia.WithInit(gorgonia.Gaussian(0, 1)))
	y, err := net.Forward(x)
	if err != nil {
		log.Fatal(err)
	}
	weights := 0
	for _, w := range net.Params() {
		weights += w.Shape().TotalSize()
	}
	fmt.Println(weights, "weights")

	vm := fusec.NewMachine(g, gorgonia.EvalMode())
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(y.Value().Shape())
	// Output:
	// 11689512 weights
	// (1, 1000)
}
