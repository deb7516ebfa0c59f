package passes

import (
	"fmt"

	"fusec/graph/trace"
	"fusec/passes/attention"
	"fusec/passes/fuse"
	"fusec/passes/layout"
	"fusec/passes/moe"
	"fusec/passes/moves"
	"fusec/passes/narrow"
	"fusec/passes/norms"
	"fusec/passes/panels"
	"fusec/passes/pools"
	"fusec/passes/raise"
	"fusec/passes/recompute"
	"fusec/passes/recurrence"
	"fusec/passes/rewrite"
	"fusec/passes/rows"
	"fusec/passes/separable"
	"fusec/passes/shard"
	"fusec/passes/simplify"
	"fusec/passes/stack"
	"fusec/passes/weights"
	"fusec/passes/winograd"
)

// Pass is a row of the table.
type Pass struct {
	Name string
	Doc  string // one line
	Run  func(*Context) error
	// After lists the passes that this one must come after.
	After []After
	// For is the pass that this one prepares the graph for. It is left out together with that pass.
	For string
	// Needed says why the pass cannot be left out of a compilation. It is nil or returns "" if the pass can be left out.
	Needed func(Config) string
}

// After says that a pass must come after another, and why.
type After struct{ Pass, Why string }

// on is a pass that needs the graph alone.
func on(run func(*rewrite.Context) error) func(*Context) error {
	return func(c *Context) error { return run(c.Context) }
}

// always is the reason why a pass is needed in every compilation.
func always(why string) func(Config) string { return func(Config) string { return why } }

// table is all passes in order: first those that rewrite the graph as a program on tensors, then those that form
// launches and prepare them for a target.
var table = []Pass{
	{Name: "strip-grad", Run: stripGrad, Needed: Config.requests,
		Doc: "gradients that can be made again become requests, and their backward nodes go"},
	{Name: "simplify", Run: on(simplify.Run),
		Doc: "constants folded, equal values merged, algebra, views in normal form", After: []After{
			{"strip-grad", "it merges and moves the nodes that the gradients are named by"},
		}},
	{Name: "raise", Run: on(raise.Run),
		Doc: "operations written out by hand recognised: relu, gelu, mean, softmax, norms, convolution", After: []After{
			{"simplify", "its patterns are written for the normal form"},
			{"strip-grad", "a backward that reads every intermediate hides what the forward is"},
		}},
	{Name: "fuse-attention", Run: on(attention.Run),
		Doc: "two contractions around a softmax become one attention: scale, masks, dropout, shared heads", After: []After{
			{"raise", "it looks for the softmax, which may be written out by hand"},
			{"strip-grad", "a backward that reads scores and probabilities would keep them in memory"},
		}},
	{Name: "fuse-moe", Run: func(c *Context) error { return moe.Run(c.Context, requested(c.Graph)) },
		Doc: "a sum of feed-forward networks, each weighted by a gate, becomes a mixture that skips closed gates", After: []After{
			{"raise", "it looks for activations, which may be written out by hand"},
			{"strip-grad", "a backward that reads hidden values would keep them in memory"},
			{"fuse-attention", "an attention written as a sum of values is not a mixture"},
		}},
	{Name: "fuse-recurrence", Run: on(recurrence.Run),
		Doc: "the steps of recurrent layers of tanh, relu, LSTM and GRU cells as one operation", After: []After{
			{"strip-grad", "a backward that reads every intermediate hides what the forward is"},
			{"simplify", "it looks for equal weights and views in normal form"},
			{"raise", "it looks for activations, which may be written out by hand"},
		}},
	{Name: "join-rows", Run: on(rows.Run),
		Doc: "products of several values with one matrix, such as in all steps of a recurrence, as one product", After: []After{
			{"strip-grad", "the matrix's gradient becomes one product, too"},
			{"simplify", "it looks for equal transposes and views in normal form"},
			{"fuse-attention", "an attention has products of its own"},
			{"fuse-moe", "experts have products of their own"},
			{"fuse-recurrence", "the products of a layer's input are made for all steps there"},
		}},
	{Name: "differentiate", Run: differentiate, Needed: Config.answers,
		Doc: "requested gradients made from the graph as it now stands", After: []After{
			{"strip-grad", "it answers the requests that strip-grad leaves"},
			{"raise", "the gradient of a raised operation is better than that of its parts"},
			{"fuse-attention", "the gradient of an attention needs no probabilities, that of its parts does"},
			{"fuse-moe", "the gradient of a mixture skips closed gates, that of its parts does not"},
			{"fuse-recurrence", "the gradient of a layer is one operation, too"},
			{"join-rows", "the gradient of products that were joined is one product"},
		}},
	{Name: "widen", Run: widen, Needed: always("it casts what the target computes in f32 only"),
		Doc: "operands of 16 bits cast to f32 for what the target computes in it", After: []After{
			{"fuse-attention", "it casts what an attention reads, and not its parts"},
			{"differentiate", "gradients are taken of the graph as it was written, and their contractions are cast as well"},
		}},
	{Name: "pack-quantised", Run: on(panels.Run),
		Doc: "products with frozen weights of few bits, and attentions with keys of 8 bits, read them as they are stored", After: []After{
			{"fuse-attention", "it looks for attentions, which may be written out by hand"},
			{"widen", "it looks for weights of 16 bits that are cast for a product"},
			{"simplify", "it looks for products with weights whose transposes are merged"},
			{"differentiate", "gradients are taken of the graph as it was written"},
			{"join-rows", "products with one matrix of weights are one product"},
		}},
	{Name: "decompose", Run: decompose,
		Needed: always("it takes apart what the target has no kernel for"),
		Doc: "convolutions, their gradients, pools and recurrences that the target has no kernel for made of simpler operations, and " +
			"batch norms in training where those are faster",
		After: []After{
			{"differentiate", "it takes apart the gradients of convolutions; those of their parts would be slower"},
			{"pack-quantised", "weights of few bits that a product reads are not dequantized"},
		}},
	{Name: "optimise-step", Run: optimiseStep, Needed: Config.stepsBy,
		Doc: "clipping, loss scale and the optimiser's update as ordinary nodes, where asked for", After: []After{
			{"differentiate", "it steps by the gradients"},
		}},
	{Name: "shard", Run: func(c *Context) error { return shard.Run(c.Context, c.cfg.Layout.ZeRO, c.cfg.Layout.Rounded) },
		Needed: func(cfg Config) string { return cfg.meshed },
		Doc:    "each participant's part of the program, with collective operations, where there is a mesh", After: []After{
			{"differentiate", "gradients are those of whole values, and follow the shardings of the forward pass"},
			{"decompose", "the parts of an operation are split where it could not be"},
			{"optimise-step", "moments may be split otherwise than parameters are"},
			{"raise", "it knows how a softmax is split, and not how its parts are together"},
		}},
	{Name: "simplify-again", Run: on(simplify.Run),
		Doc: "the same rules, now over the backward as well", After: []After{
			{"optimise-step", "parameters share scalars, such as Adam's corrections, that are written for each"},
			{"differentiate", "gradient rules write constants, sums and views without regard to what surrounds them"},
			{"decompose", "it writes views without regard to what surrounds them, and may write equal ones"},
			{"shard", "the same sums may be wanted by several readers"},
		}},
	{Name: trace.FoldPass, Run: on(weights.Fold),
		Doc: "scales of channels, such as a batch norm's in evaluation, moved into frozen weights", After: []After{
			{"differentiate", "gradients are taken of the graph as it was written"},
			{"simplify-again", "it looks for repeated vectors in normal form"},
		}},
	{Name: trace.OpenPass, Run: on(fuse.OpenNorms), For: trace.FusePass,
		Doc: "batch normalisation in evaluation as a scale and a shift of each channel", After: []After{
			{"differentiate", "the gradient of the norm is better than that of its parts"},
			{trace.FoldPass, "a norm by frozen statistics is moved into frozen weights"},
		}},
	{Name: "stack-weights", Run: on(stack.Run),
		Doc: "products of one operand with several frozen weights become one product with stacked weights", After: []After{
			{"differentiate", "gradients are taken of the graph as it was written"},
			{"simplify-again", "products of equal operands are known once these are one node"},
			{trace.FoldPass, "a scale that is moved into the weights is no longer done to each product"},
		}},
	{Name: "precision", Run: precisionPass,
		Doc: "operands of contractions rounded to 16 bits, where the caller chose so", After: []After{
			{"differentiate", "gradients are taken of the graph in f32, and their contractions are rounded as well"},
			{"optimise-step", "parameters and what an optimiser keeps stay in f32"},
			{"simplify-again", "it casts a value once for all equal nodes, and tells a cast of a constant from a cast of a value"},
			{trace.FoldPass, "weights are rounded after they are scaled"},
			{"stack-weights", "stacked weights are rounded as one value"},
		}},
	{Name: "layout", Run: on(layout.Run),
		Doc: "images in the layout in which the target computes fastest, converted only at the edges", After: []After{
			{"decompose", "an operation that the target has no kernel for has no layout"},
			{trace.OpenPass, "a scale and a shift of each channel are in any layout"},
			{"differentiate", "it lays out the backward, too"},
			{"simplify-again", "it looks for views in normal form"},
			{"precision", "casts are placed before views, and filters are cast before they are converted"},
		}},
	{Name: "winograd", Run: on(winograd.Run),
		Doc: "convolutions of 3×3, and their gradients for images, by Winograd's algorithm, where it is faster", After: []After{
			{"differentiate", "it is for gradients, too"},
			{trace.FoldPass, "filters are transformed after they are scaled"},
			{"precision", "it is for f32"},
			{"layout", "it is for images in NHWC"},
		}},
	{Name: "separable", Run: on(separable.Run),
		Doc: "depthwise convolutions and the convolutions of 1×1 around them in one launch, where it is faster", After: []After{
			{"differentiate", "a backward reads what lies between them"},
			{trace.FoldPass, "a norm by frozen statistics is a bias"},
			{"precision", "it is for f32 and f64"},
			{"layout", "it is for images in NHWC"},
		}},
	{Name: "sink-reshapes", Run: on(fuse.SinkReshapes), For: "fuse-regions",
		Doc: "a reshape after a contraction moved below the elementwise work that follows", After: []After{
			{trace.OpenPass, "it is elementwise work"},
			{"simplify-again", "it looks for views in normal form"},
			{"precision", "it moves reshapes below casts, too"},
			{"layout", "a convolution or batch norm in another layout has reshapes around it"},
		}},
	{Name: "copy-filters", Run: on(fuse.CopyFilters), For: "fuse-regions",
		Needed: always("a fused convolution reads each filter as one row of a matrix"),
		Doc:    "filters of a convolution copied where a view separates the weights of one filter", After: []After{
			{"simplify-again", "it looks for views in normal form"},
			{"precision", "filters are rounded before the views through which they are read"},
			{"layout", "filters of NHWC are read as they lie"},
		}},
	{Name: "lift-transposes", Run: on(fuse.LiftTransposes), For: "fuse-regions",
		Doc: "a transpose of joined values moved to the values that are joined", After: []After{
			{"simplify-again", "it looks for views in normal form"},
			{"precision", "casts are placed before views"},
		}},
	{Name: trace.FusePass, Run: on(fuse.Regions),
		Doc: "elementwise work moved into the launch that produces or reads it", After: []After{
			{"raise", "an operation written out by hand would be fused as its parts"},
			{"simplify-again", "regions are grown over views and constants in normal form"},
			{"precision", "a cast joins the launch that makes the value"},
			{trace.OpenPass, "a norm does not join the launch that makes its operand, a scale and a shift do"},
			{"layout", "regions are grown over images in the layout in which they are computed"},
			{"sink-reshapes", "a region ends at a reshape"},
			{"copy-filters", "a fused convolution reads its filters from memory"},
			{"lift-transposes", "a launch stores its result transposed, but not what is joined afterwards"},
		}},
	{Name: "fuse-pools", Run: on(pools.Run),
		Doc: "a pool in the launch of the convolution that makes its images, where that is faster", After: []After{
			{"fuse-regions", "it adds the pool to the launch that the convolution has become"},
		}},
	{Name: "narrow", Run: func(c *Context) error { return narrow.Results(c.Context, c.cfg.Precision.Half(), c.cfg.leastHalf) },
		Doc: "what contractions hand to later launches kept in 16 bits, where the caller chose so", After: []After{
			{"precision", "it shares the casts that contractions read"},
			{"fuse-regions", "which values are kept between launches is known when launches are formed"},
		}},
	{Name: "merge-launches", Run: on(fuse.Merge),
		Doc: "elementwise launches at the end that do the same to different values become one", After: []After{
			{"fuse-regions", "it merges the launches that fuse-regions makes"},
			{"narrow", "launches that do the same to values of one type are alike"},
		}},
	{Name: "join-moves", Run: on(moves.Run),
		Doc: "rotations, casts and writes into caches of parts of one value become one launch", After: []After{
			{"fuse-regions", "a cast joins the launch that makes or reads the value, if it can"},
			{"narrow", "it joins the casts of what is kept in 16 bits"},
			{"merge-launches", "launches that do the same are merged first"},
		}},
	{Name: "fuse-norms", Run: on(norms.Run),
		Doc: "an RMS norm made by the products of few rows that read it, where the target has such kernels", After: []After{
			{"fuse-regions", "it adds the norm to the launches that products have become"},
			{"narrow", "it decides the type in which what is normed is kept"},
			{"join-moves", "a launch that moves values reads a norm, too"},
		}},
	{Name: "place", Run: place,
		Needed: always("it copies what no kernel reads through strides, and gives what is handed out memory that nothing else has"),
		Doc:    "views as strides where they can be, copies where they cannot", After: []After{
			{"fuse-regions", "a view inside a region needs no copy"},
			{"merge-launches", "it counts who owns the values that are handed out"},
		}},
	{Name: "recompute", Run: func(c *Context) error { return recompute.Run(c.Context, c.cfg.Budget) },
		Doc: "values computed again where keeping them would exceed the memory budget", After: []After{
			{"fuse-regions", "what is stored and what a launch costs is known when launches are formed"},
			{"place", "copies take memory, too, and each value has the memory in which it stays"},
		}},
	{Name: trace.FinalPass, Run: checkLowered,
		Needed: always("it names what the target has no kernel for, before anything runs"),
		Doc:    "nothing is left that the target has no kernel for", After: []After{
			{"place", "it checks the last graph"},
			{"recompute", "it checks the last graph"},
		}},
}

func init() { mustOrder(table) }

func mustOrder(t []Pass) {
	if err := checkOrder(t); err != nil {
		panic("passes: " + err.Error())
	}
}

// checkOrder reports a pass that comes before one that it must come after, and names that are missing or not unique.
func checkOrder(t []Pass) error {
	at := map[string]bool{}
	for _, p := range t {
		if p.Name == "" || p.Doc == "" || p.Run == nil || at[p.Name] {
			return fmt.Errorf("pass %q has no name, doc or function, or is there twice", p.Name)
		}
		for _, a := range p.After {
			if !at[a.Pass] {
				return fmt.Errorf("pass %q must come after %q: %s", p.Name, a.Pass, a.Why)
			}
		}
		at[p.Name] = true
	}
	for _, p := range t {
		if p.For != "" && !at[p.For] {
			return fmt.Errorf("pass %q prepares the graph for %q, which is missing", p.Name, p.For)
		}
	}
	return nil
}

// All lists the passes in order.
func All() []Pass { return append([]Pass(nil), table...) }
