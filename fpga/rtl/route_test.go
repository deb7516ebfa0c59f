package rtl_test

import (
	"encoding/binary"
	"math/rand"
	"sort"
	"testing"

	"fusec/fpga/isa"
)

// routed is what Route commands leave: lists, gates and the count of what was dropped.
type routed struct {
	config  isa.Config
	lists   [][][2]int // token, rank
	gates   map[[2]int]uint16
	dropped int
}

// route does one command on the logits of its tokens.
func (s *routed) route(c *isa.Route, logits [][]int16) {
	if c.First {
		s.lists, s.dropped = make([][][2]int, s.config.Experts), 0
	}
	for i, row := range logits {
		order := make([]int, len(row))
		for e := range order {
			order[e] = e
		}
		sort.SliceStable(order, func(a, b int) bool { return row[order[a]] > row[order[b]] })
		chosen := order[:c.TopK]
		gates := isa.Gates(row, chosen, c.Renormalise)
		token := int(c.Token+uint16(i)) & 0xffff
		for k, e := range chosen {
			if len(s.lists[e]) == s.config.ListLen {
				s.dropped++
				gates[k] = 0
			} else {
				s.lists[e] = append(s.lists[e], [2]int{token, k})
			}
			s.gates[[2]int{token % s.config.Tokens, k}] = gates[k]
		}
	}
}

// TestRoute compares lists, gates and drops of random Route commands, several one after the other, with a model on
// isa.Gates: equal logits, extremes, lists that overflow, rows that are no multiple of the lanes.
func TestRoute(t *testing.T) {
	for _, c := range []struct {
		name                           string
		experts, list, tokens, topK, n int
	}{
		{"4 of 64", 64, 32, 64, 4, 15},
		{"1 of 2", 2, 16, 32, 1, 20},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			config := unitConfig()
			config.Experts, config.ListLen, config.Tokens, config.TopK = c.experts, c.list, c.tokens, c.topK
			testRoute(t, config, c.n)
		})
	}
}

func testRoute(t *testing.T, config isa.Config, commands int) {
	in := []port{{"rst", 1}, {"cmd_valid", 1}, {"cmd0", 64}, {"cmd1", 64}, {"cmd2", 64}, {"cmd3", 64}, {"stall", 1},
		{"wr", 1}, {"wr_lane", 2}, {"wr_addr", 10}, {"wr_data", 32}, {"of_list", 8}, {"index", 16}, {"gate_at", 16}}
	out := []port{{"done", 1}, {"token", 16}, {"rank", 3}, {"count", 16}, {"count2", 16}, {"gate", 16}, {"dropped", 32}}
	bench := newBench(t, "route_bench", in, out, config)
	rnd := rand.New(rand.NewSource(int64(config.Experts)))
	var cycles [][]uint64
	stalls := 0
	cycle := func(set func(in []uint64)) int {
		in := make([]uint64, 14)
		if rnd.Intn(100) < stalls {
			in[6] = 1
		}
		if set != nil {
			set(in)
		}
		cycles = append(cycles, in)
		return len(cycles) // the cycle after
	}
	cycle(func(in []uint64) { in[0] = 1 })
	// check is a word of output that has to be there in a cycle.
	type check struct {
		c        *isa.Route
		at, word int
		want     uint64
		what     string
		index    int
	}
	var checks []check
	type span struct {
		c          *isa.Route
		start, end int
	}
	var spans []span
	state := &routed{config: config, gates: map[[2]int]uint16{}}
	for n := range commands {
		stalls = n % 3 * 10
		c := &isa.Route{First: n == 0 || rnd.Intn(4) == 0, Renormalise: rnd.Intn(2) == 0}
		c.Token = uint16(rnd.Intn(config.Tokens - 24))
		c.TopK = uint8(1 + rnd.Intn(config.TopK))
		c.Experts = uint16(min(config.Experts, max(int(c.TopK), 2+rnd.Intn(config.Experts))))
		if rnd.Intn(2) == 0 {
			c.Experts = uint16(config.Experts)
		}
		words := (int(c.Experts)*2 + 3) / 4
		panels := 1 + rnd.Intn(min(1024/words, 6))
		c.Rows = uint16(4*(panels-1) + 1 + rnd.Intn(4))
		if panels > 1 {
			c.XPanel = uint16(words + rnd.Intn((1024-panels*words)/(panels-1)+1))
		}
		c.X = uint16(rnd.Intn(1024 - words - (panels-1)*int(c.XPanel) + 1))
		kind := rnd.Intn(5)
		logits := make([][]int16, c.Rows)
		for i := range 4 * panels {
			row := make([]int16, words*2)
			for e := range row {
				switch kind {
				case 0:
					row[e] = 77
				case 1:
					row[e] = [2]int16{-32768, 32767}[rnd.Intn(2)]
				case 2:
					row[e] = int16(rnd.Intn(5) * 500)
				case 3:
					row[e] = int16(rnd.Intn(65536) - 32768)
				default:
					row[e] = int16(rnd.NormFloat64() * 3000)
				}
			}
			for w := range words {
				cycle(func(in []uint64) {
					in[7], in[8], in[9] = 1, uint64(i%4), uint64(int(c.X)+i/4*int(c.XPanel)+w)
					in[10] = uint64(uint16(row[2*w])) | uint64(uint16(row[2*w+1]))<<16
				})
			}
			if i < int(c.Rows) {
				logits[i] = row[:c.Experts]
			}
		}
		state.route(c, logits)
		desc, err := isa.Encode(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		s := span{c: c, start: len(cycles)}
		cycle(func(in []uint64) {
			in[1] = 1
			for i := range 4 {
				in[2+i] = binary.LittleEndian.Uint64(desc[8*i:])
			}
		})
		passes := panels
		if !c.Renormalise {
			passes += int(c.Rows)
		}
		for range 300 + config.Experts + (passes*(words*4+20)+int(c.Rows)*10)*5/4 {
			cycle(nil)
		}
		s.end = len(cycles)
		spans = append(spans, s)
		for e, list := range state.lists {
			at := cycle(func(in []uint64) { in[11] = uint64(e) })
			checks = append(checks, check{c, at, 3, uint64(len(list)), "count of list", e},
				check{c, at, 4, uint64(len(list)), "second count of list", e}, check{c, at, 6, uint64(state.dropped), "dropped", 0})
			for i, entry := range list {
				at := cycle(func(in []uint64) { in[11], in[12] = uint64(e), uint64(i) })
				checks = append(checks, check{c, at, 1, uint64(entry[0]), "token of list", e},
					check{c, at, 2, uint64(entry[1]), "rank of list", e})
			}
		}
		shift := 1
		if config.TopK > 2 {
			shift = 2
		}
		for key, gate := range state.gates {
			at := cycle(func(in []uint64) { in[13] = uint64(key[0]<<shift | key[1]) })
			checks = append(checks, check{c, at, 5, uint64(gate), "gate of token", key[0]})
		}
		cycle(nil)
	}
	got := bench.run(t, cycles)
	for _, s := range spans {
		dones, last := 0, 0
		for i := s.start; i < s.end; i++ {
			if got[i][0] != 0 {
				dones++
				last = i
			}
		}
		if dones != 1 {
			t.Fatalf("%s: done %d times in %d cycles", isa.Text(s.c), dones, s.end-s.start)
		}
		t.Logf("%s: %d cycles, %d a lane's logits", isa.Text(s.c), last-s.start, (int(s.c.Rows)+3)/4*int(s.c.Experts))
	}
	for _, k := range checks {
		if got[k.at][k.word] != k.want {
			t.Fatalf("%s: %s %d: %d, want %d", isa.Text(k.c), k.what, k.index, got[k.at][k.word], k.want)
		}
	}
}
