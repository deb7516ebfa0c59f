package workload

import (
	"math"
	"slices"
	"sync"
	"testing"
)

// network computes a network of convolutions in float64.
func network(w Workload, t map[string][]float64) []float64 {
	_, values := layers(w, t)
	return values[len(w.Net)]
}

// layers computes the values of a network and their shapes. Those that no later layer reads are dropped, unless it trains.
func layers(w Workload, t map[string][]float64) ([][4]int, [][]float64) {
	shapes, values := [][4]int{[4]int(w.Tensors[0].Shape)}, [][]float64{t["x"]}
	last := make([]int, len(w.Net)+1) // the last layer that reads a value
	for i, l := range w.Net {
		for _, a := range l.Args {
			last[a] = i
		}
	}
	for i, l := range w.Net {
		x, s := values[l.Args[0]], shapes[l.Args[0]]
		var p [][]float64
		for _, name := range l.Tensors {
			p = append(p, t[name])
		}
		y := make([]float64, elems(l.Shape[:]))
		switch l.Kind {
		case LayerConv:
			convolve(y, x, s, l, p)
		case LayerNorm:
			if w.Base != "" {
				p[2], p[3] = moments(x, s)
			}
			for k := range y {
				c := k / (s[2] * s[3]) % s[1]
				y[k] = (x[k]-p[2][c])/math.Sqrt(p[3][c]+Eps)*p[0][c] + p[1][c]
			}
		case LayerAdd:
			y = plus(x, values[l.Args[1]])
		case LayerConcat:
			join(y, l, values, shapes)
		case LayerMaxPool:
			maximum(y, x, s, l)
		case LayerUpsample:
			for k := range y {
				plane, row, column := k/(4*s[2]*s[3]), k/(2*s[3])%(2*s[2]), k%(2*s[3])
				y[k] = x[(plane*s[2]+row/2)*s[3]+column/2]
			}
		case LayerMean:
			area := s[2] * s[3]
			for k, v := range x {
				y[k/area] += v / float64(area)
			}
		case LayerLinear:
			y = mul(x, p[0], p[1], s[0])
		case LayerFlat:
			y = x
		default:
			f := map[string]func(float64) float64{
				LayerRelu: relu, LayerRelu6: func(v float64) float64 { return min(max(v, 0), 6) },
				LayerSilu:    func(v float64) float64 { return v / (1 + math.Exp(-v)) },
				LayerSigmoid: func(v float64) float64 { return 1 / (1 + math.Exp(-v)) },
			}[l.Kind]
			y = each(slices.Clone(x), f)
		}
		shapes, values = append(shapes, l.Shape), append(values, y)
		for _, a := range l.Args {
			if last[a] == i && w.Base == "" {
				values[a] = nil
			}
		}
	}
	return shapes, values
}

// moments is the mean and the biased variance of each channel.
func moments(x []float64, s [4]int) (mean, variance []float64) {
	mean, variance = make([]float64, s[1]), make([]float64, s[1])
	area := s[2] * s[3]
	n := float64(s[0] * area)
	for k, v := range x {
		mean[k/area%s[1]] += v / n
	}
	for k, v := range x {
		d := v - mean[k/area%s[1]]
		variance[k/area%s[1]] += d * d / n
	}
	return mean, variance
}

// networkBack gives the loss of a network that trains, and its gradients by name.
func networkBack(w Workload, t, grads map[string][]float64) float64 {
	shapes, values := layers(w, t)
	back := make([][]float64, len(values))
	for i, v := range values {
		back[i] = make([]float64, len(v))
	}
	loss, d := lossBack(values[len(w.Net)], t["target"])
	back[len(w.Net)] = d
	for i, l := range slices.Backward(w.Net) {
		a := l.Args[0]
		x, s, dx, y, dy := values[a], shapes[a], back[a], values[i+1], back[i+1]
		area := s[2] * s[3]
		switch l.Kind {
		case LayerConv:
			name := l.Tensors[0]
			grads[name] = make([]float64, len(t[name]))
			convolveBack(dy, x, t[name], dx, grads[name], s, l)
		case LayerNorm:
			gamma := t[l.Tensors[0]]
			mean, variance := moments(x, s)
			dgamma, dbeta, n := make([]float64, s[1]), make([]float64, s[1]), float64(len(x)/s[1])
			hat := func(k, c int) float64 { return (x[k] - mean[c]) / math.Sqrt(variance[c]+Eps) }
			for k, d := range dy {
				c := k / area % s[1]
				dgamma[c] += d * hat(k, c)
				dbeta[c] += d
			}
			for k, d := range dy {
				c := k / area % s[1]
				dx[k] += gamma[c] / math.Sqrt(variance[c]+Eps) * (d - dbeta[c]/n - hat(k, c)*dgamma[c]/n)
			}
			grads[l.Tensors[0]], grads[l.Tensors[1]] = dgamma, dbeta
		case LayerRelu:
			for k, d := range masked(dy, y) {
				dx[k] += d
			}
		case LayerAdd:
			for _, a := range l.Args {
				for k, d := range dy {
					back[a][k] += d
				}
			}
		case LayerMaxPool:
			maximumBack(dy, x, y, dx, s, l)
		case LayerMean:
			for k := range x {
				dx[k] += dy[k/area] / float64(area)
			}
		case LayerLinear:
			d, dw, db := mulBack(x, t[l.Tensors[0]], dy, s[0])
			grads[l.Tensors[0]], grads[l.Tensors[1]] = dw, db
			for k, v := range d {
				dx[k] += v
			}
		}
		values[i+1], back[i+1] = nil, nil
	}
	return loss
}

// convolveBack adds the gradients of a dense convolution without a bias.
func convolveBack(dy, x, w, dx, dw []float64, s [4]int, l Layer) {
	out, oh, ow, taps := l.Shape[1], l.Shape[2], l.Shape[3], l.Kernel*l.Kernel
	var wait sync.WaitGroup
	for c := range s[1] { // each writes what no other does
		wait.Add(1)
		go func() {
			defer wait.Done()
			for n := range s[0] {
				plane := (n*s[1] + c) * s[2] * s[3]
				for o := range out {
					for tap := range taps {
						ky, kx, at := tap/l.Kernel-l.Pad, tap%l.Kernel-l.Pad, (o*s[1]+c)*taps+tap
						sum, f := 0.0, w[at]
						for r := range oh {
							i := r*l.Stride + ky
							if i < 0 || i >= s[2] {
								continue
							}
							from, to := x[plane+i*s[3]:][:s[3]], dx[plane+i*s[3]:][:s[3]]
							for q, d := range dy[((n*out+o)*oh+r)*ow:][:ow] {
								if j := q*l.Stride + kx; j >= 0 && j < s[3] {
									sum += d * from[j]
									to[j] += d * f
								}
							}
						}
						dw[at] += sum
					}
				}
			}
		}()
	}
	wait.Wait()
}

// maximumBack adds dy to the first element of each window that is its greatest.
func maximumBack(dy, x, y, dx []float64, s [4]int, l Layer) {
	oh, ow := l.Shape[2], l.Shape[3]
	for k, d := range dy {
		plane, r, c := k/(oh*ow), k/ow%oh, k%ow
		for tap := range l.Kernel * l.Kernel {
			i, j := r*l.Stride+tap/l.Kernel-l.Pad, c*l.Stride+tap%l.Kernel-l.Pad
			if i < 0 || i >= s[2] || j < 0 || j >= s[3] {
				continue
			}
			if at := (plane*s[2]+i)*s[3] + j; x[at] == y[k] {
				dx[at] += d
				break
			}
		}
	}
}

// convolve adds products of filter elements and rows of pixels.
func convolve(y, x []float64, s [4]int, l Layer, p [][]float64) {
	out, oh, ow, per := l.Shape[1], l.Shape[2], l.Shape[3], s[1]/l.Groups
	var wait sync.WaitGroup
	plane := func(n, o int) {
		defer wait.Done()
		to := y[(n*out+o)*oh*ow:][:oh*ow]
		if len(p) > 1 {
			for i := range to {
				to[i] = p[1][o]
			}
		}
		for k := range per * l.Kernel * l.Kernel {
			c, ky, kx := k/(l.Kernel*l.Kernel), k/l.Kernel%l.Kernel-l.Pad, k%l.Kernel-l.Pad
			from, f := x[(n*s[1]+o/(out/l.Groups)*per+c)*s[2]*s[3]:][:s[2]*s[3]], p[0][o*per*l.Kernel*l.Kernel+k]
			// Columns whose pixel is inside the image.
			lo, hi := 0, ow
			for lo < ow && lo*l.Stride+kx < 0 {
				lo++
			}
			for hi > lo && (hi-1)*l.Stride+kx >= s[3] {
				hi--
			}
			for r := range oh {
				if at := r*l.Stride + ky; at >= 0 && at < s[2] && lo < hi {
					row, in := to[r*ow:][:ow], from[at*s[3]:][:s[3]]
					for i := lo; i < hi; i++ {
						row[i] += f * in[i*l.Stride+kx]
					}
				}
			}
		}
	}
	for n := range s[0] {
		wait.Add(out)
		for o := range out {
			go plane(n, o)
		}
	}
	wait.Wait()
}

func maximum(y, x []float64, s [4]int, l Layer) {
	oh, ow := l.Shape[2], l.Shape[3]
	for k := range y {
		plane, r, c := k/(oh*ow), k/ow%oh, k%ow
		y[k] = math.Inf(-1)
		for ky := range l.Kernel {
			for kx := range l.Kernel {
				i, j := r*l.Stride+ky-l.Pad, c*l.Stride+kx-l.Pad
				if i >= 0 && i < s[2] && j >= 0 && j < s[3] {
					y[k] = max(y[k], x[(plane*s[2]+i)*s[3]+j])
				}
			}
		}
	}
}

// join concatenates values.
func join(y []float64, l Layer, values [][]float64, shapes [][4]int) {
	outer := elems(l.Shape[:l.Axis])
	y = y[:0]
	for o := range outer {
		for _, a := range l.Args {
			n := len(values[a]) / outer
			y = append(y, values[a][o*n:][:n]...)
		}
	}
}

func TestNoise(t *testing.T) {
	x := Noise(3, 0.5, 2, 100000)
	var mean, square float64
	for _, v := range x {
		if v < -0.5 || v >= 1.5 {
			t.Fatalf("%v is outside", v)
		}
		mean += float64(v) / 1e5
		square += float64(v) * float64(v) / 1e5
	}
	if math.Abs(mean-0.5) > 0.01 || math.Abs(square-mean*mean-1.0/3) > 0.01 {
		t.Errorf("mean %v, mean of squares %v", mean, square)
	}
	if slices.Equal(x[:10], Noise(4, 0.5, 2, 10)) {
		t.Error("another seed has the same numbers")
	}
	if got := mix(1); got != 0x688990c0 { // as rivals/conv_networks.py has it
		t.Errorf("mix(1) = %#x", got)
	}
}

// TestNetworks: the networks have the sizes that their papers and libraries give, and each layer's parameters fit.
func TestNetworks(t *testing.T) {
	for name, want := range map[string]struct {
		weights int
		gflops  float64
	}{
		"conv-resnet18": {11689512, 3.63}, "conv-resnet50": {25557032, 8.18}, "conv-mobilenet-v2": {3504872, 0.60},
	} {
		w, _ := ByName(name)
		weights := 0
		for _, l := range w.Net {
			names := l.Tensors
			if l.Kind == LayerNorm {
				names = names[:2] // the statistics are not counted
			}
			for _, x := range w.Tensors {
				if slices.Contains(names, x.Name) {
					weights += x.elems()
				}
			}
		}
		if weights != want.weights || math.Abs(w.FLOPs/1e9-want.gflops) > 0.01 {
			t.Errorf("%s: %d weights, %.3f GFLOP, want %d and %v", name, weights, w.FLOPs/1e9, want.weights, want.gflops)
		}
	}
	for _, w := range convolutions() {
		names := map[string]bool{}
		for i, x := range w.Tensors {
			if names[x.Name] || x.Seed != i+1 || !x.Noise {
				t.Errorf("%s: tensor %d is %+v", w.Name, i, x)
			}
			names[x.Name] = true
		}
		for i, l := range w.Net {
			for _, a := range l.Args {
				if a > i {
					t.Errorf("%s: layer %d reads value %d", w.Name, i, a)
				}
			}
		}
		eight, ok := ByName(w.Name + "-b8")
		if ok && (eight.FLOPs != 8*w.FLOPs || len(eight.Net) != len(w.Net) || eight.Out[0] != 8) {
			t.Errorf("%s: %v FLOP, out %v", eight.Name, eight.FLOPs, eight.Out)
		}
	}
}
