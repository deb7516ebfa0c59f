package vec

import (
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

// TestWordRows compares rows of words with their definition.
func TestWordRows(t *testing.T) {
	eachGenerator(t, func(t *testing.T) {
		for _, n := range []int{1, 4, 7, 16, 31, 32, 64, 65} {
			for rows := range 7 {
				for _, step := range []uint64{0, 1, 4, 1000, 1001, 1 << 33} {
					for _, first := range []uint64{0, 3, 1<<34 - 8} {
						dst := make([]uint32, rows*n)
						WordRows(dst, n, 5, first, step)
						for at, w := range dst {
							if want := wordAt(5, first+uint64(at/n)*step+uint64(at%n)); w != want {
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
	for _, n := range lengths() {
		x, words := randoms[T](n, 4, true), make([]uint32, n)
		Words(words, 9, uint64(n))
		for _, least := range []uint32{0, 1, 1 << 30, 1 << 31, math.MaxUint32} {
			if n > 2 {
				words[n/2], words[n-1] = least, least-1
			}
			want := make([]T, n)
			for i, w := range words {
				if w >= least {
					want[i] = x[i] * 1.25
				}
			}
			got := run(t, n, nil, func(dst []T) { k.Keep()(dst, x, words, least, 1.25) })
			same(t, "keep", got, want)
			got = run(t, n, x, func(dst []T) { k.Keep()(dst, dst, words, least, 1.25) })
			same(t, "keep in place", got, want)
		}
	}
}

func BenchmarkWords(b *testing.B) {
	words := make([]uint32, tile)
	benchmarkTile(b, func(_, _ []float32) { Words(words, 1, 0) })
}

func BenchmarkKeep(b *testing.B) {
	words, keep := make([]uint32, tile), F32().Keep()
	benchmarkTile(b, func(dst, x []float32) {
		Words(words, 1, 0)
		keep(dst, x, words, 1<<31, 2)
	})
}

// TestDraws compares rows of numbers of each width with the words that they are cut from.
func TestDraws(t *testing.T) {
	for _, bits := range []int{8, 16, 32} {
		of := uint64(32 / bits)
		for _, n := range []int{1, 3, 8, 64, 75, 200} {
			for _, first := range []uint64{0, 4, 1001, 1 << 34} {
				for _, step := range []uint64{0, 64, 77} {
					dst := make([]uint32, 3*n)
					DrawRows(dst, n, 5, first, step, bits)
					line := make([]uint32, n)
					Draws(line, 5, first+step, bits)
					for i, got := range dst {
						at := first + uint64(i/n)*step + uint64(i%n)
						word := graph.Philox(5, at/of/4)[at/of%4]
						want := word >> (at % of * uint64(bits)) << (32 - bits)
						if got>>(32-bits) != want>>(32-bits) || i/n == 1 && line[i%n]>>(32-bits) != want>>(32-bits) {
							t.Fatalf("%d bits, %d from %d, %d apart: number %d is %x, want %x", bits, n, first, step, i, got, want)
						}
					}
				}
			}
		}
	}
}
