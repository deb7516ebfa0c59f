package main

import (
	"compress/gzip"
	"encoding/csv"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"strconv"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/models/zoo"
)

const (
	pixels  = 64
	classes = 10
	// trainCount is the number of images to train on; the rest are the test images.
	trainCount = 1437
)

// digits are images with their classes.
type digits struct {
	images []float32 // [n, pixels], 0 to 1
	labels []int
}

func (d digits) count() int { return len(d.labels) }

func (d digits) part(from, to int) digits {
	return digits{d.images[from*pixels : to*pixels], d.labels[from:to]}
}

// readDigits reads testdata/digits/digits.csv.gz.
func readDigits(path string) (digits, error) {
	f, err := os.Open(path)
	if err != nil {
		return digits{}, err
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		return digits{}, fmt.Errorf("%s: %w", path, err)
	}
	var d digits
	r := csv.NewReader(z)
	r.FieldsPerRecord = pixels + 1
	for {
		record, err := r.Read()
		if err == io.EOF {
			return d, nil
		}
		if err == nil {
			err = d.add(record)
		}
		if err != nil {
			return digits{}, fmt.Errorf("%s: image %d: %w", path, d.count()+1, err)
		}
	}
}

// add appends the image of one row: its pixels, 0 to 16, and its class.
func (d *digits) add(record []string) error {
	image := make([]float32, pixels)
	for i, field := range record[:pixels] {
		v, err := strconv.ParseFloat(field, 32)
		if err != nil || !(v >= 0 && v <= 16) {
			return fmt.Errorf("pixel %d is %q, not a number from 0 to 16", i+1, field)
		}
		image[i] = float32(v / 16)
	}
	label, err := strconv.ParseFloat(record[pixels], 64)
	if err != nil || label != math.Trunc(label) || label < 0 || label >= classes {
		return fmt.Errorf("class %q is not a whole number below %d", record[pixels], classes)
	}
	d.images, d.labels = append(d.images, image...), append(d.labels, int(label))
	return nil
}

// trainDigits trains the model on d and returns its parameters, in the order of the model's.
func trainDigits(d digits, epochs int, log io.Writer) ([]*tensor.Dense, error) {
	const batch = 32
	m := zoo.DigitsMLP(batch)
	target := gorgonia.NewMatrix(m.Graph, tensor.Float32, gorgonia.WithShape(batch, classes), gorgonia.WithName("target"))
	logProbs := gorgonia.Must(gorgonia.Log(gorgonia.Must(gorgonia.SoftMax(m.Output, 1))))
	picked := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.HadamardProd(logProbs, target)), 1))
	cost := gorgonia.Must(gorgonia.Neg(gorgonia.Must(gorgonia.Mean(picked))))
	var costValue gorgonia.Value
	gorgonia.Read(cost, &costValue)
	if _, err := gorgonia.Grad(cost, m.Params...); err != nil {
		return nil, err
	}
	vm := fusec.NewMachine(m.Graph, gorgonia.BindDualValues(m.Params...))
	defer vm.Close()
	solver := gorgonia.NewAdamSolver(gorgonia.WithLearnRate(0.002), gorgonia.WithL2Reg(1e-4))

	x := tensor.New(tensor.WithShape(batch, pixels), tensor.Of(tensor.Float32))
	y := tensor.New(tensor.WithShape(batch, classes), tensor.Of(tensor.Float32))
	if err := gorgonia.Let(m.Input, x); err != nil {
		return nil, err
	}
	if err := gorgonia.Let(target, y); err != nil {
		return nil, err
	}
	order := make([]int, d.count())
	for i := range order {
		order[i] = i
	}
	r := rand.New(rand.NewPCG(1, 2))
	for epoch := range epochs {
		r.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
		loss, steps := 0.0, 0
		for at := 0; at+batch <= len(order); at += batch {
			clear(y.Float32s())
			for i, k := range order[at : at+batch] {
				copy(x.Float32s()[i*pixels:], d.images[k*pixels:(k+1)*pixels])
				y.Float32s()[i*classes+d.labels[k]] = 1
			}
			if err := vm.RunAll(); err != nil {
				return nil, err
			}
			if err := solver.Step(gorgonia.NodesToValueGrads(m.Params)); err != nil {
				return nil, err
			}
			vm.Reset()
			loss += float64(costValue.Data().(float32))
			steps++
		}
		fmt.Fprintf(log, "digits-mlp: epoch %d of %d, loss %.4f\n", epoch+1, epochs, loss/float64(steps))
	}
	values := make([]*tensor.Dense, len(m.Params))
	for i, p := range m.Params {
		values[i] = p.Value().(*tensor.Dense).Clone().(*tensor.Dense)
	}
	return values, nil
}

// digitsMLP is the trained model for as many images as there are test images, and its accuracy on them.
func digitsMLP(data digits, epochs int, log io.Writer) (*zoo.Model, float64, error) {
	values, err := trainDigits(data.part(0, trainCount), epochs, log)
	if err != nil {
		return nil, 0, err
	}
	test := data.part(trainCount, data.count())
	m := zoo.DigitsMLP(test.count())
	for i, p := range m.Params {
		if err := gorgonia.Let(p, values[i]); err != nil {
			return nil, 0, err
		}
	}
	x := tensor.New(tensor.WithShape(test.count(), pixels), tensor.WithBacking(test.images))
	if err := gorgonia.Let(m.Input, x); err != nil {
		return nil, 0, err
	}
	vm := fusec.NewMachine(m.Graph)
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		return nil, 0, err
	}
	return m, accuracy(m.Output.Value().Data().([]float32), test.labels), nil
}

// accuracy is the share of rows of logits whose greatest element is at the label.
func accuracy(logits []float32, labels []int) float64 {
	right := 0
	for i, label := range labels {
		row := logits[i*classes : (i+1)*classes]
		best := 0
		for j, v := range row {
			if v > row[best] {
				best = j
			}
		}
		if best == label {
			right++
		}
	}
	return float64(right) / float64(len(labels))
}
