package checkpoint

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/safetensors"
	"fusec/kernels/group"
)

// together calls f for each of n participants, in a goroutine of its own, and gives their errors.
func together(n int, f func(t *group.Team) error) []error {
	errs := make([]error, n)
	var all sync.WaitGroup
	for r, transport := range group.Local(n, 0) {
		all.Go(func() {
			g := group.New(transport)
			if errs[r] = f(g.All()); errs[r] != nil {
				g.Abort(errs[r])
			}
		})
	}
	all.Wait()
	return errs
}

// layout is how the values of a test lie over a mesh.
type layout struct {
	mesh   string
	splits map[string][]string
}

var layouts = []layout{
	{"data=1", nil},
	{"data=2", map[string][]string{"w": {"data", ""}, "m": {"", "data"}}},
	{"data=3", nil},
	{"data=2,tensor=2", map[string][]string{"w": {"", "tensor"}, "m": {"tensor", "data"}, "big": {"data", ""}, "none": {"", "data"}}},
	{"a=2,b=2,c=2", map[string][]string{"w": {"c", "a+b"}, "m": {"a+c", "b"}, "big": {"", "b"}, "none": {"", "c"}}},
}

// whole are values that all layouts can split.
func whole(r *rand.Rand) *State {
	random := func(d graph.DType, dims ...int) *graph.Tensor {
		t := graph.NewTensor(graph.TypeOf(d, dims...))
		b := t.Bytes()
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return t
	}
	return &State{
		Params: map[string]*graph.Tensor{"w": random(graph.F32, 4, 12), "big": random(graph.F64, 70, 2048),
			"half": random(graph.BF16, 5)},
		State: map[string]*graph.Tensor{"m": random(graph.I16, 8, 4), "none": random(graph.F32, 0, 4), "count": random(graph.I64)},
		Step:  r.Int64N(100), Seed: r.Uint64(), Position: 3, Meta: map[string]string{"rate": "0.5"},
	}
}

// pieces are what a participant has of the values; empty leaves them zero.
func (l layout) pieces(t *testing.T, s *State, rank int, empty bool) Pieces {
	m, err := graph.ParseMesh(l.mesh)
	if err != nil {
		t.Error(err)
	}
	all := [2]map[string]graph.Piece{{}, {}}
	for i, r := range roles {
		for name, x := range *r.of(s) {
			split, err := m.SplitAlong(l.splits[name]...)
			if err != nil {
				t.Error(err)
			}
			part, err := split.Part(m, x, rank)
			if err != nil {
				t.Error(err)
			}
			if empty {
				part = graph.NewTensor(part.Type)
			}
			all[i][name] = split.Piece(m, part, rank)
		}
	}
	return Pieces{all[0], all[1]}
}

func (l layout) size() int {
	m, _ := graph.ParseMesh(l.mesh)
	return m.Size()
}

// save writes a checkpoint by the participants of a layout.
func (l layout) save(t *testing.T, d Dir, s *State) string {
	t.Helper()
	var path string
	about := *s
	about.Params, about.State = nil, nil
	for _, err := range together(l.size(), func(g *group.Team) error {
		p, err := d.SavePieces(g, &about, l.pieces(t, s, g.Place(), false))
		if g.Place() == 0 {
			path = p
		}
		return err
	}) {
		if err != nil {
			t.Fatal(err)
		}
	}
	return path
}

// TestPieces writes checkpoints on each mesh and reads them on each other, and as one.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, from := range layouts {
		d := Dir{Path: filepath.Join(t.TempDir(), "run"), Keep: 1}
		var s *State
		for range 2 { // of which one is kept
			s = whole(r)
			from.save(t, d, s)
		}
		if list := names(t, d.Path); len(list) != from.size()+1 {
			t.Errorf("%s: the folder has %v", from.mesh, list)
		}
		f, err := d.Latest()
		if err != nil {
			t.Fatalf("%s: %v", from.mesh, err)
		}
		if err := equal(f.State, s); err != nil {
			t.Errorf("%s: %v", from.mesh, err)
		}
		var bytes int64
		for i := range from.size() {
			info, err := os.Stat(partPath(f.Path, i, from.size()))
			if err != nil {
				t.Fatal(err)
			}
			bytes += info.Size()
		}
		if most := int64(70*2048*8+from.size()*4000) + 500; bytes > most {
			t.Errorf("%s: %d bytes are written, want each value once", from.mesh, bytes)
		}
		for _, to := range layouts {
			to.read(t, d, s, from.mesh)
		}
		if _, err := d.Save(s); err != nil { // in one file
			t.Fatal(err)
		}
		if list := names(t, d.Path); len(list) != 1 {
			t.Errorf("%s: the folder has %v", from.mesh, list)
		}
		from.read(t, d, s, "one file")
	}
}

// read reads the newest checkpoint by the participants of a layout.
func (l layout) read(t *testing.T, d Dir, s *State, from string) {
	t.Helper()
	for _, err := range together(l.size(), func(g *group.Team) error {
		own := l.pieces(t, s, g.Place(), true)
		f, err := d.LatestPieces(g, own)
		if err != nil {
			return err
		}
		if f.Step != s.Step || f.Seed != s.Seed || f.Position != s.Position || f.Meta["rate"] != "0.5" {
			t.Errorf("%s read by %s: %v", from, l.mesh, f.State)
		}
		want := l.pieces(t, s, g.Place(), false)
		for _, r := range roles {
			for name, p := range r.pieces(&want) {
				if !r.pieces(&own)[name].Equal(p.Tensor) {
					t.Errorf("%s read by %s: %q of participant %d differs", from, l.mesh, name, g.Place())
				}
			}
		}
		return nil
	}) {
		if err != nil {
			t.Errorf("%s read by %s: %v", from, l.mesh, err)
		}
	}
}

// dying is a group that a participant leaves at some moment: the exchange of that number, and all after it, fail.
type dying struct {
	*group.Team
	left int
}

var errDied = errors.New("it has died")

func (d *dying) Gather(x, y []byte) error {
	if d.left--; d.left < 0 {
		return errDied
	}
	return d.Team.Gather(x, y)
}

// TestPiecesInterrupted ends a save at each moment: the newest whole checkpoint is there, and the next save removes what was left.
func TestPiecesInterrupted(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	l := layouts[1]
	for moment := range 5 {
		d := Dir{Path: t.TempDir(), Keep: 2}
		first, second := whole(r), whole(r)
		l.save(t, d, first)
		second.Step = first.Step + 1
		about := *second
		about.Params, about.State = nil, nil
		for _, err := range together(2, func(g *group.Team) error {
			_, err := d.SavePieces(&dying{g, moment}, &about, l.pieces(t, second, g.Place(), false))
			return err
		}) {
			if !errors.Is(err, errDied) {
				t.Errorf("moment %d: error %v", moment, err)
			}
		}
		want := first
		if moment > 3 { // it is on the disk
			want = second
		}
		f, err := d.Latest()
		if err != nil || len(f.Skipped) > 0 {
			t.Fatalf("moment %d: %v, skipped %v", moment, err, f.Skipped)
		}
		// The last exchange tells that the file that lists the others is written. Whether it is, who dies before it does not know.
		if err := equal(f.State, want); err != nil && (moment != 3 || equal(f.State, second) != nil) {
			t.Errorf("moment %d: %v", moment, err)
		}
		third := whole(r)
		l.save(t, d, third)
		f, err = d.Latest()
		if err == nil {
			err = equal(f.State, third)
		}
		if list := names(t, d.Path); err != nil || len(list) != 6 {
			t.Errorf("moment %d: error %v, the folder has %v", moment, err, list)
		}
	}
}

// TestPiecesRefused: an error of one participant is that of all, names it, and leaves no file.
func TestPiecesRefused(t *testing.T) {
	s := whole(rand.New(rand.NewPCG(5, 6)))
	l := layouts[1]
	piece := func(dims, whole []int, at, copies int) graph.Piece {
		return graph.Piece{Tensor: graph.NewTensor(graph.TypeOf(graph.F32, dims...)), Whole: graph.ShapeOf(whole...),
			At: [graph.MaxRank]int{at}, Copies: copies}
	}
	for want, of := range map[string]func(about *State, own *Pieces){
		"differ in the state of a checkpoint": func(about *State, _ *Pieces) { about.Seed++ },
		"must not be negative":                func(about *State, _ *Pieces) { about.Step = -1 },
		"does not lie in a value of shape":    func(_ *State, own *Pieces) { own.Params["w"] = piece([]int{2}, []int{4}, 3, 1) },
		"a piece of shape (2, 2) of a value":  func(_ *State, own *Pieces) { own.Params["w"] = piece([]int{2, 2}, []int{4}, 0, 1) },
		"copy 0 of 0":                         func(_ *State, own *Pieces) { own.Params["w"] = piece([]int{2}, []int{4}, 0, 0) },
		"the tensor is nil":                   func(_ *State, own *Pieces) { own.Params["w"] = graph.Piece{} },
		"given twice, whole and as a piece":   func(about *State, _ *Pieces) { about.Params = s.Params },
		"\"v\": the tensor is nil":            func(about *State, _ *Pieces) { about.Params = map[string]*graph.Tensor{"v": nil} },
	} {
		d := Dir{Path: t.TempDir()}
		errs := together(2, func(g *group.Team) error {
			about, own := *s, l.pieces(t, s, g.Place(), false)
			about.Params, about.State = nil, nil
			if g.Place() == 1 {
				of(&about, &own)
			}
			_, err := d.SavePieces(g, &about, own)
			return err
		})
		if errs[0] == nil || !strings.Contains(strings.ReplaceAll(errs[0].Error(), "[2,2]", "(2, 2)"), want) || errs[1] == nil {
			t.Errorf("errors %v, want %q", errs, want)
		}
		if list := names(t, d.Path); len(list) > 0 {
			t.Errorf("%s: the folder has %v", want, list)
		}
	}
	d := Dir{Path: t.TempDir()}
	if _, err := d.SavePieces(nil, nil, Pieces{}); err == nil {
		t.Error("saved nothing")
	}
	// A folder that cannot be made.
	file := filepath.Join(d.Path, "file")
	graphtest.WriteFile(t, file, "")
	for _, err := range together(2, func(g *group.Team) error {
		_, err := Dir{Path: file}.SavePieces(g, &State{}, Pieces{})
		if err == nil {
			return errors.New("saved into a file")
		}
		if _, err = (Dir{Path: file}).LatestPieces(g, Pieces{}); err == nil || errors.Is(err, ErrNone) {
			return fmt.Errorf("Latest of a file: %v", err)
		}
		_, err = Dir{Path: filepath.Join(d.Path, "none")}.LatestPieces(g, Pieces{})
		if !errors.Is(err, ErrNone) {
			return fmt.Errorf("of no folder: %v", err)
		}
		return nil
	}) {
		if err != nil {
			t.Error(err)
		}
	}
}

// TestPiecesDamaged: all participants skip a checkpoint of which one cannot read its pieces.
func TestPiecesDamaged(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	l := layout{"data=2", map[string][]string{"w": {"data", ""}}}
	tensors := func() *State {
		return &State{Params: map[string]*graph.Tensor{"w": whole(r).Params["w"]}, Step: 1, Meta: map[string]string{"rate": "0.5"}}
	}
	for what, damage := range map[string]func(part string) error{
		"a changed byte": func(part string) error {
			b, err := os.ReadFile(part)
			b[len(b)-1] ^= 1
			return errors.Join(err, os.WriteFile(part, b, 0o666))
		},
		"no file":     os.Remove,
		"half a file": func(part string) error { return os.Truncate(part, 100) },
		"another's file": func(part string) error {
			b, err := os.ReadFile(strings.Replace(part, "000002", "000001", 1))
			return errors.Join(err, os.WriteFile(part, b, 0o666))
		},
	} {
		d := Dir{Path: t.TempDir()}
		first := tensors()
		l.save(t, d, first)
		path := l.save(t, d, tensors())
		if err := damage(partPath(path, 1, 2)); err != nil {
			t.Fatal(err)
		}
		for _, err := range together(2, func(g *group.Team) error {
			own := l.pieces(t, first, g.Place(), true)
			f, err := d.LatestPieces(g, own)
			if err == nil && (len(f.Skipped) != 1 || !own.Params["w"].Equal(l.pieces(t, first, g.Place(), false).Params["w"].Tensor)) {
				err = fmt.Errorf("skipped %v, or read other values", f.Skipped)
			}
			return err
		}) {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		if f, err := d.Latest(); err != nil || len(f.Skipped) != 1 || equal(f.State, first) != nil {
			t.Errorf("%s: found %v, %v", what, f, err)
		}
		if err := os.Remove(filepath.Join(d.Path, "000001-step-1.safetensors")); err != nil {
			t.Fatal(err)
		}
		for _, err := range together(2, func(g *group.Team) error {
			_, err := d.LatestPieces(g, l.pieces(t, first, g.Place(), true))
			return err
		}) {
			if !errors.Is(err, ErrDamaged) {
				t.Errorf("%s: error %v", what, err)
			}
		}
	}
}

// TestPiecesOfAnotherModel names what differs.
func TestPiecesOfAnotherModel(t *testing.T) {
	s := whole(rand.New(rand.NewPCG(9, 1)))
	l := layouts[1]
	inOne, inMany := Dir{Path: t.TempDir()}, Dir{Path: t.TempDir()}
	if _, err := inOne.Save(s); err != nil {
		t.Fatal(err)
	}
	l.save(t, inMany, s)
	for _, d := range []Dir{inOne, inMany} {
		for _, err := range together(2, func(g *group.Team) error {
			own := l.pieces(t, s, g.Place(), true)
			delete(own.Params, "w")
			p := own.State["m"]
			own.State["m"] = graph.Piece{Tensor: graph.NewTensor(graph.TypeOf(graph.F32, 8, 2)), Whole: p.Whole, At: p.At, Copies: 1}
			own.State["new"] = p
			_, err := d.LatestPieces(g, own)
			for _, want := range []string{"parameter \"w\" that the model lacks", "state \"m\" is f32[8,4], in the checkpoint i16[8,4]",
				"state \"new\" is missing"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v lacks %q", err, want)
				}
			}
			for _, bad := range []graph.Piece{{}, {Tensor: &graph.Tensor{Type: p.Type, Data: []int16{1}}, Whole: p.Whole}} {
				own.State["new"] = bad
				if _, err := d.LatestPieces(g, own); err == nil || !strings.Contains(err.Error(), "\"new\"") {
					t.Errorf("error %v", err)
				}
			}
			return nil
		}) {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// TestHostileParts: what files say of their parts is not believed.
func TestHostileParts(t *testing.T) {
	type file struct {
		tensors []safetensors.Tensor
		meta    map[string]string
	}
	f := func(name, at, whole string, n int) file {
		return file{[]safetensors.Tensor{{Name: name, Shape: []int{n}, Data: make([]float32, n)}},
			map[string]string{formatKey: formatOfPart, atPrefix + name: at, wholePrefix + name: whole}}
	}
	for want, files := range map[string][]file{
		"":                                      {f("param/w", "0", "3", 1), f("param/w", "1", "3", 2)},
		"have 3 elements of tensor \"param/w\"": {f("param/w", "0", "1000000000000", 3)},
		"have the same elements":                {f("param/w", "0", "3", 2), f("param/w", "1", "3", 1)},
		"is of several types":                   {f("param/w", "0", "3", 2), f("param/w", "2", "4", 1)},
		"does not lie in a value":               {f("param/w", "2", "3", 2)},
		"list of 1 numbers":                     {f("param/w", "0,1", "3", 3)},
		"\"-3\" is not a list":                  {f("param/w", "0", "-3", 3)},
		"is neither a parameter nor state":      {f("w", "0", "3", 3)},
		"its format is":                         {{nil, map[string]string{formatKey: format}}},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "000001-step-0"+extension)
		s := &State{parts: []string{}}
		for i, x := range files {
			out, err := os.Create(partPath(path, i, len(files)))
			if err != nil {
				t.Fatal(err)
			}
			sum, err := write(out, x.tensors, x.meta)
			if err := errors.Join(err, out.Close()); err != nil {
				t.Fatal(err)
			}
			s.parts = append(s.parts, sum)
		}
		if err := Save(path, s); err != nil {
			t.Fatal(err)
		}
		got, err := Load(path)
		switch {
		case want == "" && err == nil && slices.Equal(got.Params["w"].Floats(), []float64{0, 0, 0}):
		case want == "" || err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("error %v, want %q", err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "x"+extension)
	if err := Save(path, &State{parts: []string{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(path); err == nil || !strings.Contains(err.Error(), "it lists no parts") {
		t.Errorf("error %v", err)
	}
}
