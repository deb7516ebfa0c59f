package examples

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/examples/train"
	_ "fusec/graph/graphtest/untuned"
	"fusec/testdata"
)

// short are settings with which an example learns something in a second.
func short(x *Example) train.Settings {
	s := x.Defaults
	s.Steps = 20
	switch x.Name {
	case "digits-mlp":
		s.Steps = 300
	case "digits-vit", "resnet":
		s.Batch = 16
	case "unet":
		s.Batch = 8
	case "language", "moe":
		s.Steps, s.Batch = 8, 2
	}
	return s
}

// trained runs an example and gives its losses and its weights.
func trained(t testing.TB, x *Example, s train.Settings) (losses []float64, weights [][]float32) {
	t.Helper()
	task, err := x.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	defer task.Close()
	r, err := train.Start(task, s)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	task.Evaluate = nil // which takes longer than the steps
	err = r.Loop(context.Background(), train.Plan{Each: func(r train.Record) error {
		losses = append(losses, r.Loss)
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range task.Model.Learnables {
		weights = append(weights, n.Value().Data().([]float32))
	}
	return losses, weights
}

// TestTraining: a few steps lower the loss, and are the same bits for the same seed, on any number of cores.
func TestTraining(t *testing.T) {
	for _, x := range All() {
		t.Run(x.Name, func(t *testing.T) {
			s := short(x)
			s.Workers = 1
			losses, weights := trained(t, x, s)
			n := len(losses)
			if first, last := mean(losses[:n/4]), mean(losses[n-n/4:]); !(last < 0.9*first) {
				t.Errorf("the loss goes from %v to %v", first, last)
			}
			s.Workers = 2
			again, same := trained(t, x, s)
			if !slices.Equal(losses, again) || !slices.EqualFunc(weights, same, slices.Equal) {
				t.Error("on two cores it comes to something else")
			}
			s.Steps, s.Seed = 2, 99
			if other, _ := trained(t, x, s); other[0] == losses[0] {
				t.Error("another seed has the same loss")
			}
		})
	}
}

// TestResumeStatistics: a checkpoint has the running statistics of batch norms, and a run that resumes from it goes on to
// the same bits.
func TestResumeStatistics(t *testing.T) {
	s := resnetExample.Defaults
	s.Steps, s.Batch = 4, 4
	begin := func() (*train.Task, *train.Run) {
		task, err := resnetExample.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { task.Close() })
		r, err := train.Start(task, s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { r.Close() })
		return task, r
	}
	steps := func(r *train.Run, n int) (loss float64) {
		for range n {
			record, err := r.Next()
			if err != nil {
				t.Fatal(err)
			}
			loss = record.Loss
		}
		return loss
	}
	whole, r := begin()
	steps(r, 2)
	saved, err := r.Checkpoint("resnet")
	if err != nil {
		t.Fatal(err)
	}
	want := steps(r, 2)
	again, r := begin()
	if err := r.Restore(saved); err != nil {
		t.Fatal(err)
	}
	if got := steps(r, 2); got != want {
		t.Errorf("the last loss is %v, and %v without a break", got, want)
	}
	for i, n := range whole.Model.Norms {
		if m := again.Model.Norms[i]; !m.Mean().Equal(n.Mean()) || !m.Variance().Equal(n.Variance()) {
			t.Errorf("norm %d has other statistics", i)
		}
	}
	if n := len(whole.Model.Norms); n != 9 || whole.Model.Norms[8].Mean().Float(0) == 0 {
		t.Errorf("%d norms, whose statistics may not have moved", n)
	}
}

func mean(x []float64) float64 {
	sum := 0.0
	for _, v := range x {
		sum += v
	}
	return sum / float64(len(x))
}

// TestScores: what an example says of its model is right, as far as that can be known of an untrained one.
func TestScores(t *testing.T) {
	for name, want := range map[string]struct {
		low, high float64
	}{
		// a guess is right in one of ten; of the karate club anything may be
		"digits-mlp": {0, 0.35}, "resnet": {0, 0.35}, "unet": {0, 0.35}, "karate": {0, 1},
		"language": {6, 9}, // bits per character, log₂ 128 = 7 of a guess
	} {
		x, err := Find(name)
		if err != nil {
			t.Fatal(err)
		}
		s := short(x)
		task, err := x.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		defer task.Close()
		scores, err := task.Evaluate()
		if err != nil || len(scores) != 1 || !(scores[0].Value >= want.low && scores[0].Value <= want.high) {
			t.Errorf("%s: %v, %v", name, scores, err)
		}
	}
	if _, err := Find("digits"); err == nil || !strings.Contains(err.Error(), `"digits"`) {
		t.Errorf("error %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*train.Settings)
		want   string
	}{
		{"digits-mlp", func(s *train.Settings) { s.Batch = 1438 }, "batches of 1438 images"},
		{"digits-vit", func(s *train.Settings) { s.Steps = 0 }, "0 steps"},
		{"language", func(s *train.Settings) { s.Rate = 0 }, "learning rate of 0"},
		{"moe", func(s *train.Settings) { s.Batch = 0 }, "batches of 0"},
		{"karate", func(s *train.Settings) { s.Batch = 2 }, "the club is one graph"},
		{"karate", func(s *train.Settings) { s.Steps = -1 }, "-1 steps"},
	} {
		x, err := Find(c.name)
		if err != nil {
			t.Fatal(err)
		}
		s := x.Defaults
		c.change(&s)
		if _, err := x.Open(s); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q", c.name, err, c.want)
		}
	}
	if _, err := textTask([]byte("short"), train.Settings{Steps: 1, Batch: 1, Rate: 1}, 128, nil); err == nil ||
		!strings.Contains(err.Error(), "a text of 5 bytes is too short") {
		t.Errorf("error %v", err)
	}
	if _, err := textTask([]byte("grün"), train.Settings{Steps: 1, Batch: 1, Rate: 1}, 1, nil); err == nil ||
		!strings.Contains(err.Error(), "byte 2 of the text is 0xc3") {
		t.Errorf("error %v", err)
	}
}

// Every epoch has every sample once, in another order, which follows from the seed.
func TestShuffler(t *testing.T) {
	s := train.Settings{Batch: 3, Seed: 5}
	a, b := newShuffler(12, s), newShuffler(12, s)
	var epochs [][]int
	for epoch := range 3 {
		var seen []int
		for i := range a.perEpoch() {
			seen = append(seen, a.at(epoch*a.perEpoch()+i)...)
		}
		epochs = append(epochs, slices.Clone(seen))
		slices.Sort(seen)
		for i, v := range seen {
			if v != i {
				t.Fatalf("epoch %d has %v", epoch, seen)
			}
		}
	}
	if slices.Equal(epochs[0], epochs[1]) {
		t.Error("two epochs have one order")
	}
	if got := b.at(9); !slices.Equal(got, epochs[2][3:6]) { // without the steps before it
		t.Errorf("step 9 has %v, want %v", got, epochs[2][3:6])
	}
}

func TestDigits(t *testing.T) {
	known, test, err := LoadDigits()
	if err != nil {
		t.Fatal(err)
	}
	if known.Count() != 1437 || test.Count() != 360 ||
		len(known.Images) != 1437*DigitPixels || len(test.Images) != 360*DigitPixels {
		t.Errorf("%d and %d images", known.Count(), test.Count())
	}
	for i, v := range append(slices.Clone(known.Images), test.Images...) {
		if v < 0 || v > 1 {
			t.Fatalf("pixel %d is %v", i, v)
		}
	}
	for i, v := range append(slices.Clone(known.Labels), test.Labels...) {
		if v < 0 || v >= DigitClasses {
			t.Fatalf("label %d is %v", i, v)
		}
	}
}

func TestBadDigits(t *testing.T) {
	row := strings.Repeat("1,", DigitPixels)
	for _, c := range []struct{ name, text, want string }{
		{"short row", "1,2,3\n", "wrong number of fields"},
		{"no number", row + "x\n", "image 1"},
		{"no such class", row + "10\n", "class"},
		{"half a class", row + "2.5\n", "class"},
		{"too dark", strings.Replace(row, "1", "17", 1) + "3\n", "pixel"},
		{"not a pixel", strings.Replace(row, "1", "NaN", 1) + "3\n", "pixel"},
		{"no gzip", "", "gzip"},
	} {
		t.Run(c.name, func(t *testing.T) {
			content := []byte("plain text")
			if c.text != "" {
				var b bytes.Buffer
				z := gzip.NewWriter(&b)
				fmt.Fprint(z, c.text)
				z.Close()
				content = b.Bytes()
			}
			if _, err := ReadDigits(bytes.NewReader(content)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the error is %v; want one about %q", err, c.want)
			}
		})
	}
}

// An image that is not bent stays as it is; one that is keeps its brightness within bounds and changes.
func TestBend(t *testing.T) {
	known, _, err := LoadDigits()
	if err != nil {
		t.Fatal(err)
	}
	image, dst := known.Images[:DigitPixels], make([]float32, DigitPixels)
	r := rand.New(rand.NewPCG(1, 2))
	bend(dst, image, 0, r)
	if !slices.Equal(dst, image) {
		t.Errorf("%v became %v", image, dst)
	}
	for range 20 {
		bend(dst, image, 1, r)
		if slices.Equal(dst, image) {
			t.Error("the image was not bent")
		}
		for i, v := range dst {
			if v < 0 || v > 1+1e-6 || math.IsNaN(float64(v)) {
				t.Errorf("pixel %d is %v", i, v)
			}
		}
	}
	if v := between(image, -1, 3); v != 0 {
		t.Errorf("outside it is %v", v)
	}
}

// TestHiddenDigit: the pixels of a picture that are labelled are as bright as the digit's, and as many.
func TestHiddenDigit(t *testing.T) {
	known, _, err := LoadDigits()
	if err != nil {
		t.Fatal(err)
	}
	x, y := make([]float32, PicturePixels), make([]int, PicturePixels)
	for i := range 20 {
		image, digit := known.image(i), known.Labels[i]
		hiddenDigit.draw(x, y, image, digit, 0, rand.New(rand.NewPCG(1, uint64(i))))
		want, got := 0, 0
		for _, v := range image {
			if v >= 0.4 {
				want++
			}
		}
		for k, label := range y {
			switch {
			case label == 0:
			case label == 1+digit && x[k] >= 0.4:
				got++
			default:
				t.Fatalf("pixel %d of a %d is labelled %d and is %v bright", k, digit, label, x[k])
			}
		}
		if got != want || want == 0 {
			t.Errorf("%d pixels are of the digit, want %d", got, want)
		}
	}
}

func TestMeanIoU(t *testing.T) {
	logits := []float32{1, 0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 0} // says 0, 0, 1, 1
	for _, c := range []struct {
		labels []int
		want   float64
	}{
		{[]int{0, 0, 1, 1}, 1}, {[]int{1, 1, 0, 0}, 0}, {[]int{0, 1, 1, 1}, (1.0/2 + 2.0/3) / 2},
		{[]int{0, 0, 1, 2}, (1 + 1.0/2 + 0) / 3},
	} {
		if got := meanIoU(logits, c.labels, 3); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%v: %v, want %v", c.labels, got, c.want)
		}
	}
	if got := meanIoU(nil, nil, 3); got != 0 {
		t.Errorf("of nothing: %v", got)
	}
}

func TestKarate(t *testing.T) {
	k, err := ReadKarate(testdata.KarateEdges, testdata.KarateClubs)
	if err != nil {
		t.Fatal(err)
	}
	if len(k.Club) != 34 || len(k.Source) != 156 || k.Club[0] == k.Club[33] {
		t.Errorf("%d members, %d directed edges, sides %v", len(k.Club), len(k.Source), k.Club)
	}
	const members = "member,club\n1,a\n2,b\n3,a\n"
	for _, c := range []struct{ edges, clubs, want string }{
		{"a,b\n1,4\n", members, "row 1 is [1 4], not two of 3 members"},
		{"a,b\n1,2\n2,2\n", members, "row 2"},
		{"a,b\n1,x\n", members, "row 1"},
		{"a,c\n1,2\n", members, "the head is not"},
		{"", members, "the head is not"},
		{"a,b\n1\n", members, "wrong number of fields"},
		{"a,b\n1,2\n", "member,club\n2,a\n", `row 1 is of member "2"`},
		{"a,b\n1,2\n", "member,club\n1,a\n", "took 1 sides, not 2"},
	} {
		if _, err := ReadKarate([]byte(c.edges), []byte(c.clubs)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: error %v, want one with %q", c.edges, err, c.want)
		}
	}
}
