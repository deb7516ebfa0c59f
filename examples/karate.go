package examples

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"strconv"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
	"fusec/graph/optim"
	"fusec/testdata"
)

// Karate is Zachary's karate club.
type Karate struct {
	Source, Target []int // the friendships, each in both directions, members counted from 0
	Club           []int // which side each member took: 0 or 1
}

// karateHidden is the number of features of a member in the hidden layer.
const karateHidden = 16

// karateKnown are the only members whose side is known in training: the instructor and the president, who led the two
// sides.
var karateKnown = []int{0, 33}

var karateExample = &Example{
	Name:     "karate",
	Summary:  "a graph convolutional network that tells which side each member of a karate club took",
	Reaches:  "31 of the 32 others right, at once",
	Samples:  1,
	Defaults: train.Settings{Steps: 200, Batch: 1, Rate: 0.01, Seed: 1},
	Open:     openKarate,
}

// ReadKarate reads the CSV files of the club's friendships and of the sides its members took.
func ReadKarate(edges, clubs []byte) (*Karate, error) {
	k := &Karate{}
	sides := map[string]int{}
	members, err := table(clubs, "member", "club")
	if err != nil {
		return nil, fmt.Errorf("the members: %w", err)
	}
	for i, row := range members {
		if n, err := strconv.Atoi(row[0]); err != nil || n != i+1 {
			return nil, fmt.Errorf("the members: row %d is of member %q", i+1, row[0])
		}
		side, ok := sides[row[1]]
		if !ok {
			side = len(sides)
			sides[row[1]] = side
		}
		k.Club = append(k.Club, side)
	}
	if len(sides) != 2 {
		return nil, fmt.Errorf("the members took %d sides, not 2", len(sides))
	}
	pairs, err := table(edges, "a", "b")
	if err != nil {
		return nil, fmt.Errorf("the friendships: %w", err)
	}
	for i, row := range pairs {
		a, errA := strconv.Atoi(row[0])
		b, errB := strconv.Atoi(row[1])
		if errA != nil || errB != nil || min(a, b) < 1 || max(a, b) > len(k.Club) || a == b {
			return nil, fmt.Errorf("the friendships: row %d is %v, not two of %d members", i+1, row, len(k.Club))
		}
		k.Source, k.Target = append(k.Source, a-1, b-1), append(k.Target, b-1, a-1)
	}
	return k, nil
}

// table reads a CSV file and checks its header line.
func table(src []byte, head ...string) ([][]string, error) {
	r := csv.NewReader(bytes.NewReader(src))
	r.FieldsPerRecord = len(head)
	rows, err := r.ReadAll()
	if err != nil {
		return nil, err
	}
	for i, h := range head {
		if len(rows) == 0 || rows[0][i] != h {
			return nil, fmt.Errorf("the head is not %q", head)
		}
	}
	return rows[1:], nil
}

// KarateGCN predicts the side of each of n members from the friendships among them (Kipf and Welling, arXiv
// 1609.02907): two graph convolutions. Members have no features: the first layer's weights have one row for each. Its
// inputs are the sources and targets of edges.
func KarateGCN(of tensor.Dtype, n, edges, hidden int) (*train.Model, error) {
	net := newNetwork(of)
	source, target := net.integers("source", edges), net.integers("target", edges)
	x := net.matrix("members", n, hidden)
	h := net.unary(func(x *gorgonia.Node) (*gorgonia.Node, error) { return nn.Propagate(x, source, target) }, x)
	h = net.unary(gorgonia.Tanh, h)
	return net.model(net.graphConv("sides", h, source, target, hidden, 2), source, target)
}

// graphConv is a layer of graph convolution.
func (n *network) graphConv(name string, x, source, target *gorgonia.Node, in, out int) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	c, err := nn.NewGraphConv(n.g, n.of, name, in, out)
	if err != nil {
		return n.keep(nil, err)
	}
	n.learnables = append(n.learnables, c.Params()...)
	return n.keep(c.Forward(x, source, target))
}

// openKarate trains on the whole graph in each step, with the sides of two members.
func openKarate(s train.Settings) (*train.Task, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	if s.Batch != 1 {
		return nil, fmt.Errorf("batches of %d: the club is one graph, and a batch is all of it", s.Batch)
	}
	k, err := ReadKarate(testdata.KarateEdges, testdata.KarateClubs)
	if err != nil {
		return nil, err
	}
	build := func(int) (*train.Model, error) {
		return KarateGCN(tensor.Float32, len(k.Club), len(k.Source), karateHidden)
	}
	m, err := classifier(s, build)
	if err != nil {
		return nil, err
	}
	forward, err := build(1)
	if err != nil {
		return nil, err
	}
	score, err := newScorer(forward, m, s)
	if err != nil {
		return nil, err
	}
	labels := make([]int, len(k.Club))
	for i := range labels {
		labels[i] = -1
	}
	for _, i := range karateKnown {
		labels[i] = k.Club[i]
	}
	for _, m := range []*train.Model{m, forward} {
		for i, n := range m.Inputs {
			if err := gorgonia.Let(n, tensor.New(tensor.WithBacking([][]int{k.Source, k.Target, labels}[i]))); err != nil {
				return nil, errors.Join(err, score.vm.Close())
			}
		}
	}
	return &train.Task{
		Model: m, Forward: forward,
		Optimizer: &optim.Optimizer{Rule: optim.Adam{Decay: 5e-4}, Rate: optim.Constant(s.Rate)},
		Fill:      func(int) error { return nil },
		Evaluate: func() ([]train.Score, error) {
			logits, err := score.run()
			if err != nil {
				return nil, err
			}
			right := 0
			for i, side := range k.Club {
				if labels[i] < 0 && greatest(logits.Data().([]float32)[2*i:][:2]) == side {
					right++
				}
			}
			share := float64(right) / float64(len(labels)-len(karateKnown))
			return []train.Score{{Name: "accuracy on the rest", Value: share}}, nil
		},
		Release: score.vm.Close,
	}, nil
}
