package depthwise

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

const testWorkers = 3

// A task is the items of a plan.
type task func(worker, item int)

func (f task) Do(worker, item int) { f(worker, item) }

// inOrders runs the items of a plan in their order, backwards, and by several workers, and checks that result
// has the same bits each time.
func inOrders(t *testing.T, name string, items int, run task, clear func(), result func() []float64) {
	t.Helper()
	p := pool.New(testWorkers)
	defer p.Close()
	var before []float64
	for i, do := range []func(){
		func() { p.Run(items, run) },
		func() {
			for item := items - 1; item >= 0; item-- {
				run(0, item)
			}
		},
		func() {
			for item := range items {
				run(item%testWorkers, item)
			}
		},
	} {
		clear()
		do()
		now := result()
		for j := range before {
			if i > 0 && math.Float64bits(before[j]) != math.Float64bits(now[j]) {
				t.Fatalf("%s: element %d is %v, and %v in another order of items", name, j, before[j], now[j])
			}
		}
		before = now
	}
}

// drawGeometry draws a geometry with small and odd sizes.
func drawGeometry(r *rand.Rand) (g Geometry) {
	pick := func(n int) int { return 1 + r.IntN(n) }
	g = Geometry{Images: r.IntN(4), Channels: pick(40)}
	switch r.IntN(4) {
	case 0:
		g.Channels = 32 * pick(6)
	case 1:
		g.Channels = 90 + r.IntN(90)
	}
	for i := range 2 {
		for {
			g.Size[i], g.Kernel[i], g.Stride[i], g.Dilation[i] = pick(20), pick(5), pick(4), pick(3)
			g.Before[i] = r.IntN(7)
			span := g.Size[i] + g.Before[i] + r.IntN(7) - (g.Dilation[i]*(g.Kernel[i]-1) + 1)
			if span < 0 {
				continue
			}
			g.Windows[i] = span/g.Stride[i] + 1
			break
		}
	}
	return g
}

// drawImage draws where images stand, with gaps or without, and their number of elements.
func drawImage(r *rand.Rand, images int, size [2]int, channels int) (Image, int) {
	m := Packed(size, channels)
	if r.IntN(2) == 0 {
		m.Pixel += r.IntN(5)
		m.Row = size[1]*m.Pixel + r.IntN(5)
		m.Image = size[0]*m.Row + r.IntN(5)
	}
	return m, images*m.Image + 8
}

func drawn[T Float](r *rand.Rand, n int) []T {
	x := make([]T, n)
	for i := range x {
		x[i] = T(r.NormFloat64())
	}
	return x
}

// each calls f with each tap inside the image: the element of the window's pixel, that of the image's, and the tap's number.
func (g *Geometry) each(channels int, windows, image Image, f func(o, i, tap int)) {
	for n := range g.Images {
		for oy := range g.Windows[0] {
			for ox := range g.Windows[1] {
				g.eachTap(n, oy, ox, func(y, x, tap int) { f(windows.at(n, oy, ox), image.at(n, y, x), tap) })
			}
		}
	}
}

// eachTap calls f with the pixels of a window inside the image, and the numbers of the taps.
func (g *Geometry) eachTap(n, oy, ox int, f func(y, x, tap int)) {
	for ky := range g.Kernel[0] {
		for kx := range g.Kernel[1] {
			y := oy*g.Stride[0] - g.Before[0] + ky*g.Dilation[0]
			x := ox*g.Stride[1] - g.Before[1] + kx*g.Dilation[1]
			if y >= 0 && y < g.Size[0] && x >= 0 && x < g.Size[1] {
				f(y, x, ky*g.Kernel[1]+kx)
			}
		}
	}
}

// A sum is a float64 result with the sum of its terms' sizes.
type sum struct{ value, terms float64 }

func (s *sum) add(v float64) {
	s.value += v
	s.terms += math.Abs(v)
}

func (s *sum) scale(v float64) {
	s.value *= v
	s.terms *= math.Abs(v)
}

// compare compares the elements of images, and checks that nothing is written between them.
func compare[T Float](t *testing.T, name string, got []T, m Image, images int, size [2]int, channels int, want func(i int) sum) {
	t.Helper()
	eps := 1e-6
	if _, ok := any(got).([]float64); ok {
		eps = 1e-14
	}
	inside := make([]bool, len(got))
	for n := range images {
		for y := range size[0] {
			for x := range size[1] {
				for c := range channels {
					i := m.at(n, y, x) + c
					inside[i] = true
					v, w := float64(got[i]), want(i)
					if v == w.value || v != v && w.value != w.value || math.Abs(v-w.value) <= eps*w.terms {
						continue
					}
					t.Fatalf("%s: [%d,%d,%d,%d] is %v, want %v", name, n, y, x, c, v, w.value)
				}
			}
		}
	}
	for i, v := range got {
		if !inside[i] && v != untouched {
			t.Fatalf("%s: element %d, between the pixels, was written", name, i)
		}
	}
}

const untouched = -12345

func wipe[T Float](x []T) {
	for i := range x {
		x[i] = untouched
	}
}

func copied[T Float](x []T) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

func testConv[T Float](t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for n := range 120 {
		g := drawGeometry(r)
		each := 1
		if r.IntN(4) == 0 {
			each = 2 + r.IntN(2)
		}
		co, taps := g.Channels*each, g.Kernel[0]*g.Kernel[1]
		xm, xn := drawImage(r, g.Images, g.Size, g.Channels)
		ym, yn := drawImage(r, g.Images, g.Windows, co)
		rm, rn := drawImage(r, g.Images, g.Windows, co)
		x, w, dy := drawn[T](r, xn), drawn[T](r, taps*co), drawn[T](r, yn)
		f := Unfinished[T]()
		if r.IntN(2) == 0 {
			f.Shift = drawn[T](r, co)
		}
		if r.IntN(2) == 0 {
			f.Scale = drawn[T](r, co)
		}
		if r.IntN(2) == 0 {
			f.Residual, f.Image = drawn[T](r, rn), rm
		}
		if r.IntN(2) == 0 {
			f.Low, f.High = 0, 3
		}
		if r.IntN(2) == 0 {
			f.Gate = vec.Gate[T]{Slope: 0.25, Offset: 0.5, Ceiling: 1}
		}
		if n%3 == 0 {
			for range 4 {
				x[r.IntN(len(x))] = T(math.NaN())
			}
		}
		for _, kern := range kernels[T]() {
			name := fmt.Sprintf("%d: %s %+v ×%d", n, kern.name, g, each)
			y := make([]T, yn)
			k := newCorrelation(kern, g, each, false, byNothing, xm, ym, testWorkers)
			k.Bind(x, w, y, f)
			inOrders(t, name, k.Items(), func(worker, item int) { k.Do(worker, item, make([]T, k.Scratch()), &f) },
				func() { wipe(y) }, func() []float64 { return copied(y) })
			want := make([]sum, yn)
			g.each(co, ym, xm, func(o, i, tap int) {
				for c := range co {
					want[o+c].add(float64(x[i+c/each]) * float64(w[tap*co+c]))
				}
			})
			for i := range g.Images * g.Windows[0] * g.Windows[1] {
				row, col := i/g.Windows[1], i%g.Windows[1]
				for c := range co {
					s := &want[ym.at(row/g.Windows[0], row%g.Windows[0], col)+c]
					if f.Scale != nil {
						s.scale(float64(f.Scale[c]))
					}
					if f.Shift != nil {
						s.add(float64(f.Shift[c]))
					}
					if f.Residual != nil {
						s.add(float64(f.Residual[rm.at(row/g.Windows[0], row%g.Windows[0], col)+c]))
					}
					if f.Gate.Slope != 0 {
						gate := vec.Gate[float64]{Slope: 0.25, Offset: 0.5, Ceiling: 1}
						s.terms *= 2 + math.Abs(s.value)
						s.value = gate.Of(s.value)
					}
					s.value = min(max(s.value, float64(f.Low)), float64(f.High))
				}
			}
			compare(t, name, y, ym, g.Images, g.Windows, co, func(i int) sum { return want[i] })

			// The gradients.
			dx, plain := make([]T, xn), Unfinished[T]()
			k = newCorrelation(kern, g, each, true, byNothing, ym, xm, testWorkers)
			k.Bind(dy, w, dx, plain)
			inOrders(t, name, k.Items(), func(worker, item int) { k.Do(worker, item, make([]T, k.Scratch()), &plain) },
				func() { wipe(dx) }, func() []float64 { return copied(dx) })
			want = make([]sum, xn)
			g.each(co, ym, xm, func(o, i, tap int) {
				for c := range co {
					want[i+c/each].add(float64(dy[o+c]) * float64(w[tap*co+c]))
				}
			})
			compare(t, name+" gradient", dx, xm, g.Images, g.Size, g.Channels, func(i int) sum { return want[i] })

			fg := newFilterGrad(kern, g, each, xm, ym, testWorkers)
			dw, shared := make([]T, taps*co), make([]T, fg.Shared())
			fg.Bind(x, dy, dw, shared)
			inOrders(t, name, fg.Items(), func(worker, item int) { fg.Do(worker, item, make([]T, fg.Scratch())) },
				func() { wipe(dw); wipe(shared) }, func() []float64 {
					for item := range fg.Sums() {
						fg.Sum(item)
					}
					return copied(dw)
				})
			want = make([]sum, len(dw))
			g.each(co, ym, xm, func(o, i, tap int) {
				for c := range co {
					want[tap*co+c].add(float64(dy[o+c]) * float64(x[i+c/each]))
				}
			})
			compare(t, name+" filters", dw, Packed(g.Kernel, co), 1, g.Kernel, co, func(i int) sum { return want[i] })
		}
	}
}

func TestConv(t *testing.T) {
	t.Run("float32", testConv[float32])
	t.Run("float64", testConv[float64])
}

func testPools[T Float](t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	special := []float64{0, 1, 1, math.Inf(-1), math.NaN(), -1, 2, 2, math.Inf(1)}
	for n := range 120 {
		g := drawGeometry(r)
		g.Dilation = [2]int{1, 1}
		for i := range 2 {
			g.Windows[i] = (g.Size[i]+g.Before[i]+2*g.Kernel[i]-g.Kernel[i])/g.Stride[i] + 1
		}
		c := g.Channels
		xm, xn := drawImage(r, g.Images, g.Size, c)
		ym, yn := drawImage(r, g.Images, g.Windows, c)
		x, dy := drawn[T](r, xn), drawn[T](r, yn)
		if n%2 == 0 {
			for i := range x {
				x[i] = T(special[r.IntN(len(special))])
			}
		}
		if n%4 == 0 {
			for i := range x {
				x[i] = max(min(x[i], 1), T(math.Inf(-1)))
			}
		}
		// best is the window's element that the maximum takes, or -1.
		best := make([]int, yn)
		count := make([]float64, yn)
		for i := range best {
			best[i] = -1
		}
		means, shares := make([]sum, yn), make([]sum, xn)
		g.each(c, ym, xm, func(o, i, _ int) {
			for c := range c {
				b, v := best[o+c], x[i+c]
				if b < 0 || v > x[b] || v != v && x[b] == x[b] {
					best[o+c] = i + c
				}
				means[o+c].add(float64(v))
				count[o+c]++
			}
		})
		for _, countPad := range []bool{false, true} {
			divisor := func(o int) float64 {
				if countPad {
					return float64(g.Kernel[0] * g.Kernel[1])
				}
				return count[o]
			}
			clear(shares)
			g.each(c, ym, xm, func(o, i, _ int) {
				for c := range c {
					shares[i+c].add(float64(dy[o+c]) / divisor(o+c))
				}
			})
			for _, kern := range kernels[T]() {
				name := fmt.Sprintf("%d: %s %+v mean", n, kern.name, g)
				y, dx, plain := make([]T, yn), make([]T, xn), Unfinished[T]()
				k := newCorrelation(kern, g, 1, false, meanDivisor(countPad), xm, ym, testWorkers)
				k.Bind(x, nil, y, plain)
				inOrders(t, name, k.Items(), func(worker, item int) { k.Do(worker, item, make([]T, k.Scratch()), &plain) },
					func() { wipe(y) }, func() []float64 { return copied(y) })
				compare(t, name, y, ym, g.Images, g.Windows, c, func(i int) sum {
					return sum{means[i].value / divisor(i), means[i].terms / divisor(i)}
				})
				k = newCorrelation(kern, g, 1, true, meanDivisor(countPad), ym, xm, testWorkers)
				k.Bind(dy, nil, dx, plain)
				inOrders(t, name, k.Items(), func(worker, item int) { k.Do(worker, item, make([]T, k.Scratch()), &plain) },
					func() { wipe(dx) }, func() []float64 { return copied(dx) })
				compare(t, name+" gradient", dx, xm, g.Images, g.Size, c, func(i int) sum { return shares[i] })
			}
		}
		clear(shares)
		for n := range g.Images {
			for oy := range g.Windows[0] {
				for ox := range g.Windows[1] {
					for c := range c {
						if o := ym.at(n, oy, ox) + c; best[o] >= 0 {
							shares[best[o]].add(float64(dy[o]))
						}
					}
				}
			}
		}
		for _, kern := range kernels[T]() {
			name := fmt.Sprintf("%d: %s %+v maximum", n, kern.name, g)
			y, dx := make([]T, yn), make([]T, xn)
			k := newMaximum(kern, g, xm, ym, testWorkers)
			k.Bind(x, y)
			inOrders(t, name, k.Items(), k.Do, func() { wipe(y) }, func() []float64 { return copied(y) })
			compare(t, name, y, ym, g.Images, g.Windows, c, func(i int) sum {
				if best[i] < 0 {
					return sum{value: math.Inf(-1)}
				}
				return sum{value: float64(x[best[i]])}
			})
			grad := newMaximumGrad(kern, g, xm, ym, testWorkers)
			grad.Bind(x, dy, dx)
			inOrders(t, name, grad.Items(), grad.Do, func() { wipe(dx) }, func() []float64 { return copied(dx) })
			compare(t, name+" gradient", dx, xm, g.Images, g.Size, c, func(i int) sum { return shares[i] })
		}
	}
}

func TestPools(t *testing.T) {
	t.Run("float32", testPools[float32])
	t.Run("float64", testPools[float64])
}
