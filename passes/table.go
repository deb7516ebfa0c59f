package passes

import (
	"fmt"
	"fusec/passes/attention"
	"fusec/passes/fuse"
	"fusec/passes/moe"
	"fusec/passes/narrow"
	"fusec/passes/raise"
	"fusec/passes/recompute"
	"fusec/passes/rewrite"
	"fusec/passes/simplify"
)

// Pass is a row of the table.
type Pass struct {
	Name  string
	Doc   string // one line
	Run   func(*Context) error
	After []After
}

// After says that a pass must come after another, and why.
type After struct{ Pass, Why string }

// on is a pass that needs the graph alone.
func on(run func(*rewrite.Context) error) func(*Context) error {
	return func(c *Context) error { return run(c.Context) }
}

// rewriting lists the passes that bring the graph into the form in which a target can fuse it.
var rewriting = []Pass{
	{Name: "strip-grad", Doc: "gradients that can be made anew become requests, and their backward nodes go", Run: stripGrad},
	{Name: "simplify", Doc: "constants folded, equal values merged, algebra, views in normal form", Run: on(simplify.Run), After: []After{
		{"strip-grad", "it merges and moves the nodes that the gradients are named by"},
	}},
	{Name: "raise", Doc: "operations written out by hand recognised: relu, gelu, mean, softmax, norms, convolution", Run: on(raise.Run), After: []After{
		{"simplify", "its patterns are written for the normal form"},
		{"strip-grad", "a backward that reads every intermediate hides what the forward is"},
	}},
	{Name: "fuse-attention", Doc: "two contractions around a softmax become one attention: scale, masks, dropout, shared heads", Run: on(attention.Run), After: []After{
		{"raise", "it looks for the softmax, which may be written out by hand"},
		{"strip-grad", "a backward that reads scores and probabilities would keep them in memory"},
	}},
	{Name: "fuse-moe", Doc: "a sum of feed-forward networks, each weighted by a gate, becomes a mixture that skips closed gates", Run: func(c *Context) error { return moe.Run(c.Context, requested(c.Graph)) }, After: []After{
		{"raise", "it looks for activations, which may be written out by hand"},
		{"strip-grad", "a backward that reads hidden values would keep them in memory"},
		{"fuse-attention", "an attention written as a sum of values is none of its business"},
	}},
	{Name: "differentiate", Doc: "requested gradients made from the graph as it now stands", Run: differentiate, After: []After{
		{"strip-grad", "it answers the requests that strip-grad leaves"},
		{"raise", "the gradient of a raised operation is better than that of its parts"},
		{"fuse-attention", "the gradient of an attention needs no probabilities, that of its parts does"},
		{"fuse-moe", "the gradient of a mixture skips closed gates, that of its parts does not"},
	}},
	{Name: "optimise-step", Doc: "clipping, loss scale and the optimiser's update as ordinary nodes, where asked for", Run: optimiseStep, After: []After{
		{"differentiate", "it steps by the gradients"},
	}},
	{Name: "simplify-again", Doc: "the same rules, now over the backward as well", Run: on(simplify.Run), After: []After{
		{"optimise-step", "parameters share scalars, such as Adam's corrections, that are written for each"},
		{"differentiate", "gradient rules write constants, sums and views without regard to what stands around them"},
	}},
}

// table is all passes in order. Passes that group nodes and give them to devices follow those that rewrite.
var table = append(append([]Pass(nil), rewriting...), lowering...)

// lowering lists the passes that group nodes and prepare them for a target.
var lowering = []Pass{
	{Name: "precision", Doc: "operands of contractions rounded to 16 bits, where the caller chose so", Run: precisionPass, After: []After{
		{"differentiate", "gradients are taken of the graph in f32, and their contractions are rounded as well"},
		{"optimise-step", "parameters and what an optimiser keeps stay in f32"},
		{"simplify-again", "it casts a value once that equal nodes stand for, and knows a cast of a constant from a cast of a value"},
	}},
	{Name: "fuse-regions", Doc: "elementwise work moved into the launch that produces or reads it", Run: on(fuse.Regions), After: []After{
		{"raise", "an operation written out by hand would be fused as its parts"},
		{"simplify-again", "regions are grown over views and constants in normal form"},
		{"precision", "a cast joins the launch that makes the value"},
	}},
	{Name: "narrow", Doc: "what contractions hand to later launches kept in 16 bits, where the caller chose so", Run: func(c *Context) error { return narrow.Results(c.Context, c.precision.Half(), c.leastHalf) }, After: []After{
		{"precision", "it shares the casts that contractions read"},
		{"fuse-regions", "which values are kept between launches is known when launches are formed"},
	}},
	{Name: "merge-launches", Doc: "elementwise launches at the end that do the same to different values become one", Run: on(fuse.Merge), After: []After{
		{"fuse-regions", "it merges the launches that fuse-regions makes"},
		{"narrow", "launches that do the same to values of one type are alike"},
	}},
	{Name: "place", Doc: "views as strides where they can be, copies where they cannot", Run: place, After: []After{
		{"fuse-regions", "a view inside a region needs no copy"},
		{"merge-launches", "it counts who owns the values that are handed out"},
	}},
	{Name: "recompute", Doc: "values computed again where keeping them would exceed the memory budget", Run: func(c *Context) error { return recompute.Run(c.Context, c.budget) }, After: []After{
		{"fuse-regions", "what is stored and what a launch costs is known when launches are formed"},
		{"place", "copies take memory, too, and each value has the memory in which it stays"},
	}},
	{Name: "check-lowered", Doc: "nothing is left that the target has no kernel for", Run: checkLowered, After: []After{
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
	return nil
}

// All lists the passes in order.
func All() []Pass { return append([]Pass(nil), table...) }
