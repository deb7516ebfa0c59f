// Command group trains a small network on several processes, each with its part of every batch:
//
//	go build -o bin/group ./examples/group
//	mpirun -n 2 bin/group --folder run
//	fusec launch --devices 2 -- bin/group --target cuda
//
// Started alone it has one participant. It stores a checkpoint after each step, of which each participant writes a part, and from
// which the next start goes on, also on another number of participants. On target cuda each process has a GPU. --zero splits the
// optimiser's moments (1) and the parameters, too (3). --pipeline gives each process a stage of the network, and cuts batches into
// so many microbatches; then it writes no checkpoints.
package main

import (
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"log"
	"math/rand/v2"
	"os"
	"slices"

	"fusec"
	"fusec/graph"
	"fusec/graph/checkpoint"
	"fusec/graph/optim"
	"fusec/kernels/group"
	"fusec/kernels/group/mpi"
	"fusec/kernels/group/rendezvous"
)

const batch, width, hidden, classes = 32, 64, 128, 10

func main() {
	log.SetFlags(0)
	steps := flag.Int64("steps", 20, "steps to train")
	folder := flag.String("folder", "", "folder of the checkpoints; none without it")
	zero := flag.Int("zero", 0, "stage of ZeRO: 1 splits moments, 3 parameters, too")
	microbatches := flag.Int("pipeline", 0, "a stage of the network on each process, and so many microbatches")
	target := flag.String("target", "cpu", "cpu or cuda")
	flag.Parse()
	if err := run(*target, *steps, *folder, *zero, *microbatches); err != nil {
		log.Fatal(err) // mpirun and fusec launch end the other participants
	}
}

func run(target string, steps int64, folder string, zero, microbatches int) (err error) {
	g, place, err := join()
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			g.Abort(err)
		}
		g.Close()
	}()
	if t, ok := fusec.TargetNamed(target); ok && t.Device != "" { // each process has a device of its own
		target = fmt.Sprintf("%s:%d", t.Name, place.Local)
	}
	model, err := network()
	if err != nil {
		return err
	}
	opts := []fusec.CompileOption{fusec.WithGroup(g), fusec.WithTarget(target),
		fusec.CompileOption(fusec.WithOptimizer(&optim.Optimizer{Rule: optim.AdamW{}, Rate: optim.Constant(1e-3), Clip: 1}))}
	if zero > 0 {
		opts = append(opts, fusec.WithZeRO(zero))
	}
	if microbatches > 0 {
		opts = append(opts, fusec.WithPipeline(microbatches))
	}
	p, err := fusec.Compile(model, opts...)
	if err != nil {
		return err
	}
	defer p.Close()
	first, err := begin(g, p, model, folder)
	if err != nil {
		return err
	}
	for step := first + 1; step <= steps; step++ {
		in := data(step)
		out, err := p.Run(in)
		if err != nil {
			return err
		}
		h := fnv.New64a()
		for _, w := range weights(model) {
			t, err := p.Whole(w.Name) // all join their parts, in the same order
			if err != nil {
				return err
			}
			h.Write(t.Bytes())
		}
		if g.Rank() == 0 {
			fmt.Printf("step %d of %d participants: cost %.6f, weights %016x\n", step, g.Size(), out["cost"].Float(0), h.Sum64())
		}
		if folder != "" {
			own, err := pieces(p, model, p.State)
			if err != nil {
				return err
			}
			if _, err := (checkpoint.Dir{Path: folder, Keep: 2}).SavePieces(g.All(), &checkpoint.State{Step: step}, own); err != nil {
				return err
			}
		}
	}
	return nil
}

// join is the group of the processes that were started together, or of this one.
func join() (*group.Group, group.Place, error) {
	place, launched, err := group.Launched(os.Getenv)
	switch {
	case err != nil:
		return nil, place, err
	case !launched:
		return group.New(group.Local(1, 0)[0]), place, nil
	case os.Getenv(rendezvous.Address) != "":
		return rendezvous.Join(0)
	}
	g, err := mpi.Join(0)
	return g, place, err
}

// network is two layers with a loss.
func network() (*graph.Graph, error) {
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	b := graph.NewBuilder("network")
	x, y := b.Input("x", f(batch, width)), b.Input("y", f(batch, classes))
	w1, b1, w2 := b.Param("w1", f(width, hidden)), b.Param("b1", f(hidden)), b.Param("w2", f(hidden, classes))
	h := b.MatMul(x, w1, false, false)
	h = b.Unary(graph.Relu, b.Binary(graph.Add, h, b.Broadcast(b1, h.Type.Shape)))
	p := b.Add(graph.LogSoftmax{Axis: 1}, b.MatMul(h, w2, false, false))
	cost := b.Reduce(graph.Sum, b.Binary(graph.Mul, p, y), false, 0, 1)
	b.Output("cost", b.BinaryScalar(graph.Mul, cost, -1.0/batch))
	return b.Graph()
}

// data is the batch of a step: classes that a part of x shows. Every participant makes all of it, and computes on its part.
func data(step int64) map[string]*graph.Tensor {
	r := rand.New(rand.NewPCG(1, uint64(step)))
	x, y := graph.NewTensor(graph.TypeOf(graph.F32, batch, width)), graph.NewTensor(graph.TypeOf(graph.F32, batch, classes))
	for i := range batch {
		class := r.IntN(classes)
		for j := range width {
			x.SetFloat(i*width+j, r.NormFloat64())
		}
		x.SetFloat(i*width+class, 3)
		y.SetFloat(i*classes+class, 1)
	}
	return map[string]*graph.Tensor{"x": x, "y": y}
}

func weights(g *graph.Graph) []*graph.Node {
	return slices.DeleteFunc(g.Sources(), func(n *graph.Node) bool { _, ok := n.Op.(graph.Param); return !ok })
}

// begin gives weights and moments the values of the last checkpoint, or their first ones. It returns the steps done.
func begin(g *group.Group, p *fusec.Program, model *graph.Graph, folder string) (int64, error) {
	if folder != "" {
		own, err := pieces(p, model, func(string) (*graph.Tensor, error) { return nil, nil })
		if err != nil {
			return 0, err
		}
		last, err := checkpoint.Dir{Path: folder}.LatestPieces(g.All(), own)
		if err == nil {
			for _, values := range []map[string]graph.Piece{own.Params, own.State} {
				for name, piece := range values {
					if err := p.Set(name, piece.Tensor); err != nil {
						return 0, err
					}
				}
			}
			return last.Step, nil
		}
		if !errors.Is(err, checkpoint.ErrNone) {
			return 0, err
		}
	}
	r := rand.New(rand.NewPCG(2, 3))
	for _, w := range weights(model) {
		t := graph.NewTensor(w.Type)
		for i := range t.Type.Shape.Elems() {
			t.SetFloat(i, 0.1*r.NormFloat64())
		}
		if err := p.Set(w.Name, t); err != nil {
			return 0, err
		}
	}
	return 0, nil
}

// pieces are the participant's parts of all that training goes on from.
func pieces(p *fusec.Program, model *graph.Graph, value func(string) (*graph.Tensor, error)) (checkpoint.Pieces, error) {
	own := checkpoint.Pieces{Params: map[string]graph.Piece{}, State: map[string]graph.Piece{}}
	add := func(to map[string]graph.Piece, name string) error {
		part, err := value(name)
		if err == nil {
			to[name], err = p.Piece(name, part)
		}
		return err
	}
	var err error
	for _, w := range weights(model) {
		err = errors.Join(err, add(own.Params, w.Name))
	}
	for _, name := range p.States() {
		err = errors.Join(err, add(own.State, name))
	}
	return own, err
}
