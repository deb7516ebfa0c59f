package fpgatest

import (
	"context"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/fstest"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/rtl"
	"fusec/fpga/sim"
	"fusec/fpga/testtools"
)

// mutant is a fault in the hardware: in a file, the expression between « and » of a piece of text becomes another.
type mutant struct{ file, text, by string }

// mutants are faults that the random programs and the wrong descriptors have to detect, by the overlay on which they
// are tried: most need full-range data, lists that are full, records that saturate or memory that is slow.
var mutants = map[string][]mutant{
	"tall": {
		{"fx_pe.sv", "sum <= «(first ? {ACC_BITS{1'b0}} : sum)» + ACC_BITS'(product)", "sum"},
		{"fx_scale.sv", "whole_product <= «P'(low) + {high, 17'b0}»", "P'(low) + {high, 17'b0} + 1'b1"},
		{"fx_scale.sv", "over1 <= «over4 || by1[27:23] != {5{sign4}}»", "by1[27:23] != {5{sign4}}"},
		{"fx_scale.sv", "high <= m * $signed(«x[ACC_BITS-1:17]»)", "x[ACC_BITS-1:17] & {2'b0, {(ACC_BITS-19){1'b1}}}"},
		{"fx_scale.sv", "{sign1, «{23{~sign1}}»}", "{23{sign1}}"},
		{"fx_scale.sv", "{s[23], s} + «{bias[23], bias}»", "{1'b0, bias}"},
		{"fx_finish.sv", "more <= 22'($signed(product[24:4])) + «22'sd128»", "22'sd127"},
		{"fx_finish.sv", "wide ? «!(&shifted[18:15] || ~|shifted[18:15])»", "!(&shifted[18:16] || ~|shifted[18:16])"},
		{"fx_finish.sv", ".raddr(«{table_at, clipped[7:0]}»)", "{table_at, clipped[7:0] ^ 8'h80}"},
		{"fx_rows.sv", "cmd_listed && «index + 17'd1 >= {1'b0, ls_count}»", "index + 17'd2 >= {1'b0, ls_count}"},
		{"fx_rows.sv", "outside <= «row_end > {1'b0, limit}»",
			"row_end > {1'b0, limit} + (ADDR_BITS+2)'(WORD_BYTES)"},
		{"fx_rows.sv", "cmd_top_k == 3'd1 ? '0 : «19'(ls_rank)»", "19'd0"},
		{"fx_load.sv", "done <= «finish && last»", "finish"},
		{"fx_load.sv", "ld_addr <= ld_addr + «ld_by»", "16'd1"},
		{"fx_rows.sv", "lane <= «PATCHES != 0 ? cmd_lane : '0»", "6'd0"},
		{"fx_rows.sv", "deep <= deep + «18'(cmd_tap_step)»", "18'(cmd_words)"},
		{"fx_rows.sv", "far_over <= «far_over || far_sum[ADDR_BITS] || far_high»", "far_over"},
		{"fx_rows.sv", "row_last <= «final_row && seg_last»", "final_row"},
		{"fx_store.sv", "wire settled = «settle && w_idle»", "settle"},
		{"fx_issue.sv", "post_mask = «posts[first]»", "posts[next]"},
		{"fx_semaphores.sv", "full[s] = «next[s][WIDTH]»", "1'b0"},
		{"fx_semaphores.sv", "!rst && want[c] && «(wait_masks[c*COUNT +: COUNT] & ~above) == 0»",
			"wait_masks[c*COUNT +: COUNT] == 0 || (wait_masks[c*COUNT +: COUNT] & above) != 0"},
		{"fx_arbiter.sv", "dead <= «kill || (dead && (m_ar_valid || taken || owed != 0))»", "1'b0"},
		{"fx_fetch.sv", "QUIET: if («idle») state <= TAKE", "1'b1"},
		{"fx_fetch.sv", "fits <= «at[ADDR_BITS:5]» < limit[ADDR_BITS:5]", "at[ADDR_BITS:5] + 1'b1"},
		{"fx_check.sv", "count_if(zero || «(one_row && v != 1)»)", "1'b0"},
		{"fx_gemm.sv", "else if («tile_last») par <= par_first", "1'b0"},
		{"fx_gemm.sv", "assign fd_first = «fresh && !more»", "fresh"},
		{"fx_gemm.sv", "(«residual && res_end[Y_BITS]»)", "1'b0"},
		{"fx_gemm.sv", "panels <= («17'(list_count) + 17'(ROWS - 1)») >> R_BITS", "17'(list_count)"},
		{"fx_address.sv", "assign next = {«sum[BITS] | at[BITS] | step[BITS]»", "sum[BITS] | at[BITS]"},
		{"fx_lane.sv", "if («by_row ? bias_rec && bias_at == 0 : bias_v») bias_held", "bias_v"},
		{"fx_norm.sv", "down <= «5'd24»", "5'd23"},
		{"fx_vector_lane.sv", "b_next = first ? n : «-r_all»", "r_all"},
		{"fx_lists.sv", "wire room = «!count1[LL]»", "1'b1"},
		{"fx_route_lane.sv", "!taken[i] || «value > kept»", "value >= kept"},
		{"fx_route.sv", ".wdata(room ? gate4 : «16'd0»)", "gate4"},
	},
	"all": {
		{"fx_exp2.sv", "17'((shifted + «18'd1») >> 1)", "18'd0"},
		{"fx_reciprocal.sv", "{r[14:0], «(fits | full) & n[31]»}", "fits & n[31]"},
		{"fx_softmax.sv", "s_seen <= «sc_in && sc_rel > 0»", "sc_in"},
		{"fx_softmax.sv", "if (s_valid && «(s_first || (s_seen && level > top))»)", "s_first || level > top"},
		{"fx_softmax.sv", "rise <= climb <= 0 ? 5'd0 : «climb >= 16»", "climb >= 64"},
		{"fx_softmax.sv", "clear <= «~fin_2 & rises[half_2][4]»", "1'b0"},
		{"fx_softmax.sv", "t <= {m, 11'd0} - «{held[19], held[19:0]}»", "{1'b0, held[19:0]}"},
		{"fx_softmax.sv", "rc_sum <= «rc_zero ? 32'd0 : sums[rc_panel]»", "sums[rc_panel]"},
		{"fx_softmax.sv", "f <= 16'((product + «32'h8000») >> 16)", "32'h0"},
		{"fx_attention.sv", "wire signed [17:0] reach = «diagonal + edge_rows»", "diagonal + edge_rows - 18'sd1"},
	},
	"serial": {
		{"fx_pe.sv", "{d1[9], d1} + 11'(«w_i[3]»)", "1'b0"},
		{"fx_scale.sv", "(ACC_BITS+1)'(«m[0] && sign»)", "1'b0"},
		{"fx_finish.sv", "18'(«x[0] && sign»)", "1'b0"},
	},
}

// mutantFile is the file in which the simulator finds the number of the fault that it has, counted from one.
const mutantFile = "mutant"

// declared is what a module with faults begins with.
const declared = `
  int fx_mutant = 0;
  int fx_mutant_file;
  initial begin
    fx_mutant_file = $fopen("` + mutantFile + `", "r");
    if (fx_mutant_file != 0) begin
      if ($fscanf(fx_mutant_file, "%d", fx_mutant) != 1) fx_mutant = 0;
      $fclose(fx_mutant_file);
    end
  end
`

// faulty is the hardware with all of some faults in it, one of which is chosen when the simulator starts.
func faulty(t *testing.T, ms []mutant) fs.FS {
	t.Helper()
	files := fstest.MapFS{}
	names, err := fs.ReadDir(rtl.Files, ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		b, err := fs.ReadFile(rtl.Files, n.Name())
		if err != nil {
			t.Fatal(err)
		}
		text := string(b)
		begin, end, ok := strings.Cut(text, "\n);\n") // behind the ports of the first module
		any := false
		for i, m := range ms {
			if m.file != n.Name() {
				continue
			}
			before, rest, _ := strings.Cut(m.text, "«")
			old, after, _ := strings.Cut(rest, "»")
			if strings.Count(end, before+old+after) != 1 {
				t.Fatalf("%s: %q is there %d times, not once", m.file, before+old+after, strings.Count(end,
					before+old+after))
			}
			end = strings.Replace(end, before+old+after, fmt.Sprintf("%s(fx_mutant == %d ? (%s) : (%s))%s", before,
				i+1, m.by, old, after), 1)
			any = true
		}
		if any && !ok {
			t.Fatalf("%s: no module", n.Name())
		}
		if any {
			text = begin + "\n);\n" + declared + end
		}
		files[n.Name()] = &fstest.MapFile{Data: []byte(text)}
	}
	return files
}

// told is how programs and wrong descriptors tell a simulator from the overlay, nil if they do not.
func told(t *testing.T, program string, c isa.Config, seeds uint64) error {
	t.Helper()
	open := func() link.Link {
		l, err := link.StartProcess(program, link.Options{Memory: int64(min(1<<c.AddrBits, 1<<20))})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	l := open()
	defer func() { l.Close() }()
	ctx := limited(t) // watchdogs end programs
	limit := uint32(1 << 15)
	good := &isa.Load{Space: isa.SpaceX, Rows: 1, Words: 1}
	try := func(code isa.Error, number uint32, limit uint32, commands ...isa.Command) error {
		r := Raw{At: 64, Limit: limit, Watchdog: 20000}
		if err := r.Encode(commands...); err != nil {
			t.Fatal(err)
		}
		got, err := r.Run(ctx, l)
		if want := (Stop{code, number}); err == nil && got != want {
			err = fmt.Errorf("%s: %+v, want %+v", isa.Text(commands[len(commands)-2]), got, want)
		}
		return err
	}
	for _, w := range wrongs(c, limit) {
		if err := try(w.code, 2, limit, good, &isa.Barrier{}, w.cmd, &isa.End{}); err != nil {
			return err
		}
	}
	posts := make([]isa.Command, isa.SemaphoreMax+1)
	for i := range posts {
		posts[i] = &isa.Barrier{Sync: isa.Sync{Post: 2}}
	}
	if err := try(isa.ErrSemaphore, isa.SemaphoreMax, limit, append(posts, &isa.End{})...); err != nil {
		return err
	}
	if err := try(isa.ErrNone, 0, 64+2*isa.DescBytes, good, &isa.End{}); err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(1, 1))
	for seed := range seeds {
		p, err := Random(2000+seed, c, Options{})
		if err != nil {
			t.Fatal(err)
		}
		p.Watchdog = 1 << 16
		if err := l.(link.Simulator).SetMemory(RandomMemory(r)); err != nil {
			return err
		}
		if err := p.Compare(ctx, l); err != nil {
			return err
		}
	}
	return nil
}

// TestMutants puts faults into the hardware, one at a time: each has to be found; without one nothing is.
func TestMutants(t *testing.T) {
	for _, c := range configs {
		ms := mutants[c.Name]
		if ms == nil {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			seeds := uint64(40)
			if c.Name != "tall" {
				testtools.Long(t)
				seeds = 400 // a few faults show in one of some hundred programs
			}
			files := faulty(t, ms)
			program := built(t, func(ctx context.Context, c isa.Config, o sim.Options) (string, error) {
				o.Sources = files
				b, err := sim.Build(ctx, c, o)
				return b.Program, err
			}, c)
			t.Chdir(t.TempDir())
			if err := told(t, program, c, seeds); err != nil {
				t.Fatalf("without a fault: %v", err)
			}
			for i, m := range ms {
				if err := os.WriteFile(mutantFile, fmt.Appendln(nil, i+1), 0o666); err != nil {
					t.Fatal(err)
				}
				err := told(t, program, c, seeds)
				if err == nil {
					t.Errorf("%s: nothing tells %q from %q", m.file, m.by, m.text)
					continue
				}
				first, _, _ := strings.Cut(err.Error(), "\n")
				t.Logf("%s: %s: %s", m.file, m.by, first)
			}
		})
	}
}
