// Package checkpoint stores what is needed to resume a training run that has ended, or was killed at any moment:
// weights, optimiser state, step, seed, the loader's position and the user's notes, in one safetensors file.
//
// [Save] writes the file atomically: a reader sees the complete old or new file. A checksum of the whole file lets
// [Load] detect later damage. Values keep their bits, including NaN, f64 and i64. So a resumed run computes the same as
// an uninterrupted one.
//
// [Dir] numbers the checkpoints of a run in a folder, keeps the newest few and finds the newest one that is intact.
//
// The participants of a group write a checkpoint together with [Dir.SavePieces]: each a file of the parts of values that it has.
// [Dir.LatestPieces] reads it, or one in a single file, on any number of participants with any parts; [Load] joins whole values.
//
// The tensors of a file are named param/NAME and state/NAME, and everything else is in its metadata. Other programs
// read it like any safetensors file.
package checkpoint

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"fusec/graph"
)

// State is the content of a checkpoint.
type State struct {
	Params map[string]*graph.Tensor // the weights by the names of their Param nodes
	State  map[string]*graph.Tensor // State nodes: moments of the optimiser, running statistics
	Step   int64                    // steps done
	Seed   uint64                   // of dropout, shuffling and everything else that is random
	// Position is the position of the data: the value of the loader's Position when Step steps were done.
	Position int64
	Meta     map[string]string // the user's, such as the learning rate; UTF-8

	parts []string // of a checkpoint in several files: their checksums
}

// role is a kind of tensor in a checkpoint.
type role struct {
	name, prefix string
	of           func(*State) *map[string]*graph.Tensor
	pieces       func(*Pieces) map[string]graph.Piece
}

var roles = []role{
	{"parameter", "param/", func(s *State) *map[string]*graph.Tensor { return &s.Params },
		func(p *Pieces) map[string]graph.Piece { return p.Params }},
	{"state", "state/", func(s *State) *map[string]*graph.Tensor { return &s.State },
		func(p *Pieces) map[string]graph.Piece { return p.State }},
}

// maxErrors bounds how many misfits are listed.
const maxErrors = 20

// Fits checks that the checkpoint holds the parameters and the state of g, in their types, and nothing else. The error
// names each tensor that is missing, has another type or is unknown to g, up to 20 of them.
func (s *State) Fits(g *graph.Graph) error {
	var want [2]map[string]place
	for i := range want {
		want[i] = map[string]place{}
	}
	for _, n := range g.Sources() {
		switch n.Op.(type) {
		case graph.Param:
			want[0][n.Name] = place{n.Type, n.Where()}
		case graph.State:
			want[1][n.Name] = place{n.Type, n.Where()}
		}
	}
	return s.compare(want)
}

// Restore copies the checkpoint's values into the tensors of a model. The two maps must hold exactly the names of the
// checkpoint, each with its type: differences are an error as in [State.Fits], and then nothing is changed.
func (s *State) Restore(params, state map[string]*graph.Tensor) error {
	to := [2]map[string]*graph.Tensor{params, state}
	var want [2]map[string]place
	for i, tensors := range to {
		want[i] = map[string]place{}
		for name, t := range tensors {
			if err := check(t); err != nil {
				return fmt.Errorf("%s %q of the model: %w", roles[i].name, name, err)
			}
			want[i][name] = place{t.Type, fmt.Sprintf("%s %q", roles[i].name, name)}
		}
	}
	if err := s.compare(want); err != nil {
		return err
	}
	for i, tensors := range to {
		for name, t := range tensors {
			t.CopyFrom((*roles[i].of(s))[name])
		}
	}
	return nil
}

// place is the tensor that a model requires, and its name in errors.
type place struct {
	t     graph.Type
	where string
}

// compare lists the differences between the checkpoint and a model, by role and name.
func (s *State) compare(want [2]map[string]place) error { return s.differences(want, check) }

// differences is compare with another check of tensors.
func (s *State) differences(want [2]map[string]place, check func(*graph.Tensor) error) error {
	var errs []error
	for i, r := range roles {
		have := *r.of(s)
		for _, name := range slices.Sorted(maps.Keys(want[i])) {
			p := want[i][name]
			switch t := have[name]; {
			case t == nil:
				errs = append(errs, fmt.Errorf("%s is missing from the checkpoint", p.where))
			case t.Type != p.t:
				errs = append(errs, fmt.Errorf("%s is %v, in the checkpoint %v", p.where, p.t, t.Type))
			default:
				if err := check(t); err != nil {
					errs = append(errs, fmt.Errorf("%s %q of the checkpoint: %w", r.name, name, err))
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(have)) {
			if _, ok := want[i][name]; !ok {
				errs = append(errs, fmt.Errorf("the checkpoint has a %s %q that the model lacks", r.name, name))
			}
		}
	}
	if more := len(errs) - maxErrors; more > 0 {
		errs = append(errs[:maxErrors], fmt.Errorf("and %d more", more))
	}
	return errors.Join(errs...)
}

// check refuses a tensor that is nil or whose data does not match its type.
func check(t *graph.Tensor) error {
	if t == nil {
		return errors.New("the tensor is nil")
	}
	return t.Check()
}
