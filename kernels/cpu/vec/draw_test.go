package vec

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"fusec/graph"
)

// wordAt is the definition of [Words].
func wordAt(seed, i uint64) uint32 { return graph.Philox(seed, i/4)[i%4] }

// TestWords compares words with their definition: every start and length of some blocks, where the counter passes 32
// bits, and around the destination.
func TestWords(t *testing.T) {
	eachGenerator(t, func(t *testing.T) {
		for _, seed := range []uint64{0, 7, 1<<63 + 1<<40 + 12345, math.MaxUint64} {
			for _, from := range []uint64{0, 1 << 20, 1<<34 - 40, 1<<50 - 8} {
				for skip := range uint64(5) {
					first := from + skip
					for _, n := range append(lengths(), 128, 129, 131) {
						const outside = 0xdeadbeef
						room := slices.Repeat([]uint32{outside}, n+2)
						Words(room[1:n+1], seed, first)
						for i, w := range room[1 : n+1] {
							if want := wordAt(seed, first+uint64(i)); w != want {
								t.Fatalf("seed %d: word %d+%d of %d is %#x, want %#x", seed, first, i, n, w, want)
							}
						}
						if room[0] != outside || room[n+1] != outside {
							t.Fatalf("%d words from %d on: written beside them", n, first)
						}
					}
				}
			}
		}
	})
}

// TestWordRows compares rows of words of seven rounds with their definition.
func TestWordRows(t *testing.T) {
	eachGenerator(t, func(t *testing.T) {
		for _, n := range []int{1, 4, 7, 8, 16, 24, 31, 32, 64, 65} {
			for rows := range 11 {
				for _, step := range []uint64{0, 1, 4, 1000, 1001, 1 << 33} {
					for _, first := range []uint64{0, 3, 1<<34 - 8} {
						dst := make([]uint32, rows*n)
						stream{5, 7}.rows(dst, n, first, step)
						for at, w := range dst {
							i := first + uint64(at/n)*step + uint64(at%n)
							if want := graph.Philox7(5, i/4)[i%4]; w != want {
								t.Fatalf("%d rows of %d, %d apart: word %d is %#x, want %#x", rows, n, step, at, w, want)
							}
						}
					}
				}
			}
		}
	})
}

// TestWordsInPieces cuts a stretch of words in all kinds of ways.
func TestWordsInPieces(t *testing.T) {
	eachGenerator(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(1, 2))
		want := make([]uint32, 5000)
		Words(want, 3, 11)
		got := make([]uint32, len(want))
		for range 20 {
			for at := 0; at < len(got); {
				n := min(1+r.IntN(1<<r.IntN(11)), len(got)-at)
				Words(got[at:at+n], 3, 11+uint64(at))
				at += n
			}
			if !slices.Equal(got, want) {
				t.Fatal("words depend on the pieces in which they are drawn")
			}
		}
	})
}

func TestKeep(t *testing.T) {
	eachImplementation(t, testKeep[float32], testKeep[float64])
}

func testKeep[T Float](t *testing.T, k *Kernels[T]) {
	for _, n := range append(lengths(), 32, 33, 63, 64, 65, 95, 96, 100) {
		x, kept := randoms[T](n, 4, true), make([]uint32, (n+31)/32)
		Words(kept, 9, uint64(n))
		want := make([]T, n)
		for i := range want {
			if kept[i/32]>>graph.DropoutBit(uint64(i))&1 == 1 {
				want[i] = x[i] * 1.25
			}
		}
		got := run(t, n, nil, func(dst []T) { k.Keep()(dst, x, kept, 1.25) })
		same(t, "keep", got, want)
		got = run(t, n, x, func(dst []T) { k.Keep()(dst, dst, kept, 1.25) })
		same(t, "keep in place", got, want)
	}
}

// TestKept compares rows of bits with the rule, for numbers of each length, and around the destination.
func TestKept(t *testing.T) {
	eachGenerator(t, func(t *testing.T) {
		for _, p := range []float64{0, 0.5, 0.25, 0.7, 0.1, 0.01, 0.003, 1e-5, 1e-6, 1 - 0x1p-40} {
			rule := graph.DropoutRuleOf(p)
			for _, n := range []int{0, 1, 3, 8, 16, 32, 75, 96, 2100} {
				for _, first := range []uint64{0, 8, 32, 1001, 1 << 38} {
					for _, step := range []uint64{0, 32, 96, 77} {
						const rows = 5
						dst := make([]uint32, (rows*n+31)/32+1)
						dst[len(dst)-1] = 7
						Kept(dst, rows, n, rule, 3, first, step)
						for i := range rows * n {
							if n > 100 && i%7 > 0 {
								continue
							}
							at := first + uint64(i/n)*step + uint64(i%n)
							got := dst[i/32]>>graph.DropoutBit(uint64(i))&1 == 1
							if want := rule.Keeps(3, at); got != want {
								t.Fatalf("p %v, rows of %d from %d, %d apart: element %d: %t", p, n, first, step, i, got)
							}
						}
						if dst[len(dst)-1] != 7 {
							t.Fatalf("rows of %d: written behind", n)
						}
					}
				}
			}
		}
	})
}

func TestKeptColumns(t *testing.T) {
	for _, rows := range []int{1, 4, 6, 8, 12, 16, 31, 32} {
		for n := 1; n <= 3; n++ {
			src, dst := make([]uint32, rows*n), make([]uint32, rows*n)
			Words(src, 4, uint64(rows))
			KeptColumns(dst, src, rows, n)
			for i := range rows * n * 32 {
				row, at := i%rows, uint64(i/rows)
				want := src[row*n+int(at/32)] >> graph.DropoutBit(at) & 1
				if got := dst[i/32] >> graph.DropoutBit(uint64(i)) & 1; got != want {
					t.Fatalf("%d rows of %d groups: bit %d is %d", rows, n, i, got)
				}
			}
		}
	}
}

func BenchmarkWords(b *testing.B) {
	words := make([]uint32, tile)
	benchmarkTile(b, func(_, _ []float32) { Words(words, 1, 0) })
}

func BenchmarkKeep(b *testing.B) {
	for _, p := range []float64{0.5, 0.1, 0.01} {
		b.Run(fmt.Sprint(p), func(b *testing.B) {
			kept, keep, rule := make([]uint32, tile/32), F32().Keep(), graph.DropoutRuleOf(p)
			benchmarkTile(b, func(dst, x []float32) {
				Kept(kept, 1, len(dst), rule, 1, 0, 0)
				keep(dst, x, kept, 2)
			})
		})
	}
}

// BenchmarkKeptColumns measures dropout of columns of so many rows.
func BenchmarkKeptColumns(b *testing.B) {
	rule, keep := graph.DropoutRuleOf(0.1), F32().Keep()
	for _, rows := range []int{8, 16, 32} {
		b.Run(fmt.Sprint(rows), func(b *testing.B) {
			byQuery, byKey := make([]uint32, tile/32), make([]uint32, tile/32)
			benchmarkTile(b, func(dst, x []float32) {
				Kept(byQuery, rows, tile/rows, rule, 1, 0, 1024)
				KeptColumns(byKey, byQuery, rows, tile/rows/32)
				keep(dst, x, byKey, 1)
			})
		})
	}
}
