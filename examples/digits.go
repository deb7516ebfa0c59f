package examples

import (
	"bytes"
	"compress/gzip"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"strconv"

	"fusec/examples/train"
	"fusec/graph/optim"
	"fusec/testdata"
)

// Sizes of the images of digits.
const (
	DigitSide    = 8
	DigitPixels  = DigitSide * DigitSide
	DigitClasses = 10
	digitsTrain  = 1437 // images for training; the rest are the test images
)

// Digits are images of handwritten digits.
type Digits struct {
	Images []float32 // [n, DigitPixels], row by row, 0 to 1
	Labels []int     // the digits
}

// Count is the number of images.
func (d Digits) Count() int { return len(d.Labels) }

// image is the pixels of an image.
func (d Digits) image(i int) []float32 { return d.Images[i*DigitPixels:][:DigitPixels] }

// part returns the images [from, to).
func (d Digits) part(from, to int) Digits {
	return Digits{d.Images[from*DigitPixels : to*DigitPixels], d.Labels[from:to]}
}

// ReadDigits reads a gzipped CSV file: one line for each image, with its pixels from 0 to 16 and then the digit.
func ReadDigits(r io.Reader) (Digits, error) {
	z, err := gzip.NewReader(r)
	if err != nil {
		return Digits{}, err
	}
	var d Digits
	rows := csv.NewReader(z)
	rows.FieldsPerRecord = DigitPixels + 1
	for {
		record, err := rows.Read()
		if err == io.EOF {
			return d, nil
		}
		if err == nil {
			err = d.add(record)
		}
		if err != nil {
			return Digits{}, fmt.Errorf("image %d: %w", d.Count()+1, err)
		}
	}
}

// add appends the image of one row.
func (d *Digits) add(record []string) error {
	image := make([]float32, DigitPixels)
	for i, field := range record[:DigitPixels] {
		v, err := strconv.ParseFloat(field, 64)
		if err != nil || !(v >= 0 && v <= 16) {
			return fmt.Errorf("pixel %d is %q, not a number from 0 to 16", i+1, field)
		}
		image[i] = float32(v / 16)
	}
	label, err := strconv.ParseFloat(record[DigitPixels], 64)
	if err != nil || label != math.Trunc(label) || !(label >= 0 && label < DigitClasses) {
		return fmt.Errorf("class %q is not a whole number below %d", record[DigitPixels], DigitClasses)
	}
	d.Images, d.Labels = append(d.Images, image...), append(d.Labels, int(label))
	return nil
}

// LoadDigits returns the embedded images: those to train on and those to test with.
func LoadDigits() (known, test Digits, err error) {
	d, err := ReadDigits(bytes.NewReader(testdata.Digits))
	if err == nil && d.Count() <= digitsTrain {
		err = fmt.Errorf("%d images, %d of them to train on", d.Count(), digitsTrain)
	}
	if err != nil {
		return Digits{}, Digits{}, fmt.Errorf("the digits: %w", err)
	}
	return d.part(0, digitsTrain), d.part(digitsTrain, d.Count()), nil
}

// A scene is what a model sees of a digit, and what it is asked.
type scene struct {
	// draw writes the model's input and the labels for an image of a digit, distorted as [bend] does.
	draw  func(x []float32, y []int, image []float32, digit int, bent float64, r *rand.Rand)
	score func(logits []float32, labels []int) train.Score
}

// oneDigit is the image itself and its digit.
var oneDigit = scene{
	func(x []float32, y []int, image []float32, digit int, bent float64, r *rand.Rand) {
		bend(x, image, bent, r)
		y[0] = digit
	},
	func(logits []float32, labels []int) train.Score {
		return train.Score{Name: "test accuracy", Value: accuracy(logits, labels)}
	},
}

// digitsTask is the task of learning digits in a scene. Build makes the model for batches of inputs; its output are
// logits. Each image is distorted at random in each step, as data augmentation. For bent = 0 it is not distorted; for 1
// it is distorted as far as the digit stays recognisable. Test images are not distorted.
func digitsTask(s train.Settings, in scene, bent float64, rule optim.Rule, build builder) (*train.Task, error) {
	known, test, err := LoadDigits()
	if err == nil {
		err = s.Check()
	}
	if err == nil && s.Batch > known.Count() {
		err = fmt.Errorf("batches of %d images: there are %d to train on", s.Batch, known.Count())
	}
	if err != nil {
		return nil, err
	}
	m, err := classifier(s, build)
	if err != nil {
		return nil, err
	}
	forward, err := build(test.Count())
	if err != nil {
		return nil, err
	}
	score, err := newScorer(forward, m, s)
	if err != nil {
		return nil, err
	}
	x, err := train.Zeroed(m.Inputs[0])
	y, err2 := train.Zeroed(m.Inputs[1])
	shown, err3 := train.Zeroed(forward.Inputs[0])
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, errors.Join(err, score.vm.Close())
	}
	pixels, labels := len(x.Float32s())/s.Batch, len(y.Ints())/s.Batch
	asked := make([]int, test.Count()*labels)
	r := rand.New(rand.NewPCG(1, 1)) // the same test images for every run
	for i := range test.Count() {
		in.draw(shown.Float32s()[i*pixels:][:pixels], asked[i*labels:][:labels], test.image(i), test.Labels[i], 0, r)
	}
	order := newShuffler(known.Count(), s)
	return &train.Task{
		Model: m, Forward: forward,
		Optimizer: &optim.Optimizer{Rule: rule, Rate: optim.WarmupCosine(s.Rate, s.Rate/100, s.Steps/20, s.Steps),
			Clip: 1, Group: optim.DecayMatrices},
		Fill: func(step int) error {
			r := rand.New(rand.NewPCG(s.Seed, ^uint64(step))) // another sequence than that of the epochs' orders
			for i, k := range order.at(step) {
				in.draw(x.Float32s()[i*pixels:][:pixels], y.Ints()[i*labels:][:labels], known.image(k), known.Labels[k], bent, r)
			}
			return nil
		},
		Evaluate: func() ([]train.Score, error) {
			logits, err := score.run()
			if err != nil {
				return nil, err
			}
			return []train.Score{in.score(logits.Data().([]float32), asked)}, nil
		},
		Release: score.vm.Close,
	}, nil
}

// bend writes a distorted copy of an image to dst: rotated, slanted, stretched and shifted at random. The factor how
// scales the distortion; at 1 the digits are just recognisable. Pixels are interpolated; pixels from outside of the
// image are black.
func bend(dst, image []float32, how float64, r *rand.Rand) {
	const turn, slant, stretch, move = 0.2, 0.25, 0.12, 0.8 // radians, ratio, ratio, pixels
	draw := func(most float64) float64 { return how * most * (2*r.Float64() - 1) }
	sin, cos := math.Sincos(draw(turn))
	sheared, wide, high := draw(slant), 1+draw(stretch), 1+draw(stretch)
	right, down := draw(move), draw(move)
	const centre = (DigitSide - 1) / 2.0
	for row := range DigitSide {
		for column := range DigitSide {
			x, y := (float64(column)-centre-right)*wide, (float64(row)-centre-down)*high
			x += sheared * y
			x, y = cos*x-sin*y+centre, sin*x+cos*y+centre
			dst[row*DigitSide+column] = between(image, x, y)
		}
	}
}

// between interpolates an image's brightness at a point between pixels.
func between(image []float32, x, y float64) float32 {
	left, top := math.Floor(x), math.Floor(y)
	sum := 0.0
	for _, row := range []float64{top, top + 1} {
		for _, column := range []float64{left, left + 1} {
			if row >= 0 && row < DigitSide && column >= 0 && column < DigitSide {
				share := (1 - math.Abs(x-column)) * (1 - math.Abs(y-row))
				sum += share * float64(image[int(row)*DigitSide+int(column)])
			}
		}
	}
	return float32(sum)
}

// accuracy is the share of rows of logits whose greatest element is at the label.
func accuracy(logits []float32, labels []int) float64 {
	right, classes := 0, len(logits)/len(labels)
	for i, label := range labels {
		if greatest(logits[i*classes:][:classes]) == label {
			right++
		}
	}
	return float64(right) / float64(len(labels))
}

// greatest is the index of the first of the largest elements.
func greatest(row []float32) int {
	best := 0
	for j, v := range row {
		if v > row[best] {
			best = j
		}
	}
	return best
}
