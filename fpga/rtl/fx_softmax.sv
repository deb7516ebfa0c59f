// What a lane does for attention: the online softmax of isa's fixed.go for one query of each panel. It has the scores
// and the probabilities of two items (blocks of keys of a panel) each, and of every panel the maximum, the sum and
// the accumulators.
//
// ctl is what the sequencer (fx_attention) tells lane 0; a lane hands it on one cycle later, as results come from the
// array one cycle later a row. Its fields, and when they are to come:
//
//   sc_*   score comes in now, of key sc_at (its highest bit: which half of the memories). The lane sees the key if
//          sc_in and sc_rel > 0; sc_rel is one more in the next lane, whose query comes one later. sc_first and sc_last
//          are the ends of an item.
//   feed_at  key whose probability is at feed two cycles later
//   xb     the item's maximum is taken over and the older sum shifted, for panel xb_panel; with xb_fresh the panel
//          begins. From two cycles after sc_last. xb_panel and xb_half stay until sum_write.
//   ex_at  key whose probability is computed, from the cycle of xb on; pr_write and pr_at nine cycles later;
//          sum_write ten cycles after the last ex_at.
//   ac_*   accumulator ac_at is read. Without ac_finish result has come from the array in this cycle, and the
//          accumulator is written by aw_write and aw_at five cycles later. With ac_finish it goes to q four cycles
//          later.
//   rc     the reciprocal of the sum of panel rc_panel is made, and f with it. rc_zero: of a panel that saw no key.
//          The first ac_finish comes 24 cycles later, and the next rc not before two cycles after the last.
`default_nettype none
module fx_softmax #(
  parameter KEY_BLOCK = 64, HEAD_DIM = 64, Q_PANELS = 4,
  parameter KEY_BITS = $clog2(KEY_BLOCK) + 1,
  parameter PANEL_BITS = Q_PANELS > 1 ? $clog2(Q_PANELS) : 1,
  parameter ACC_BITS = PANEL_BITS + $clog2(HEAD_DIM),
  parameter CTL_BITS = 4 * KEY_BITS + 2 * PANEL_BITS + 2 * ACC_BITS + 23
) (
  input  wire                 clk,
  input  wire                 rst,
  input  wire  [CTL_BITS-1:0] ctl,
  output logic [CTL_BITS-1:0] ctl_next,
  input  wire signed [23:0]   score,   // scaled, not yet of 20 bits
  input  wire signed [31:0]   result,  // of the array
  input  wire  [15:0]         out_mul,
  output logic [16:0]         feed,    // row operand of the array
  // What FinishAttention multiplies: see isa.
  output logic signed [28:0]  q,
  output logic [15:0]         f
);
  logic sc_valid, sc_first, sc_last, sc_in, xb, xb_fresh, xb_half, pr_write, sum_write, ac_half, ac_finish, aw_write;
  logic rc, rc_zero;
  logic signed [8:0] sc_rel;
  logic [KEY_BITS-1:0] sc_at, ex_at, pr_at, feed_at;
  logic [PANEL_BITS-1:0] xb_panel, rc_panel;
  logic [ACC_BITS-1:0] ac_at, aw_at;
  assign {feed_at, sc_valid, sc_first, sc_last, sc_in, sc_at, xb, xb_fresh, xb_half, xb_panel, ex_at, pr_write, pr_at,
      sum_write, ac_half, ac_finish, ac_at, aw_write, aw_at, rc, rc_zero, rc_panel, sc_rel} = ctl;
  always_ff @(posedge clk) ctl_next <= {ctl[CTL_BITS-1:9], sc_rel + 9'sd1};

  // ---- Scores: 20 bits and whether the key is seen. The block's maximum in units of two; -257 is below all.
  (* no_rw_check *) logic [20:0] scores[0:2*KEY_BLOCK-1];
  logic signed [19:0] s;
  logic s_valid, s_seen, s_first, s_last, top_last, top_half;
  logic [KEY_BITS-1:0] s_at;
  logic signed [9:0] top;
  logic signed [9:0] tops[0:1];  // of both items
  wire signed [9:0] level = {s[19], s[19:11]};
  wire over = score[23] ? ~(&score[22:19]) : |score[22:19];
  always_ff @(posedge clk) begin
    s <= over ? {score[23], {19{~score[23]}}} : score[19:0];
    s_valid <= sc_valid;
    s_seen <= sc_in && sc_rel > 0;
    {s_first, s_last, s_at} <= {sc_first, sc_last, sc_at};
    if (s_valid) scores[s_at] <= {s_seen, s};
    if (s_valid && (s_first || (s_seen && level > top))) top <= s_seen ? level : -10'sd257;
    top_last <= s_valid & s_last;
    top_half <= s_at[KEY_BITS-1];
    if (top_last) tops[top_half] <= top;
  end

  // ---- The panel's maximum and how far it rises, in units; 16: what was before counts no more.
  logic signed [9:0] maxima[0:Q_PANELS-1];
  logic [31:0] sums[0:Q_PANELS-1];
  logic signed [9:0] m_old, m;
  logic [31:0] sum_old, sum;
  logic [4:0] rise;
  logic [4:0] rises[0:1];
  logic xb_1, xb_2, fresh_1;
  logic signed [9:0] m_block;  // of the block, which may have ended just now
  wire signed [10:0] climb = {m_block[9], m_block} - {m_old[9], m_old};
  wire [16:0] p;
  always_ff @(posedge clk) begin
    {xb_1, xb_2, fresh_1} <= {xb, xb_1, xb_fresh};
    m_old <= xb_fresh ? -10'sd256 : maxima[xb_panel];
    m_block <= (top_last && top_half == xb_half ? top : tops[xb_half]) + 10'sd1;
    sum_old <= sums[xb_panel];
    if (xb_1) begin
      m <= climb > 0 ? m_block : m_old;
      rise <= climb <= 0 ? 5'd0 : climb >= 16 ? 5'd16 : climb[4:0];
      if (fresh_1) rise <= 5'd16;
    end
    if (xb_2) begin
      maxima[xb_panel] <= m;
      rises[xb_half] <= rise;
    end
    if (xb_2) sum <= rise[4] ? 32'd0 : sum_old >> {rise[3:0], 1'b0};
    else if (pr_write) sum <= sum + {15'd0, p};
    if (sum_write) sums[xb_panel] <= sum;
  end

  // ---- Probabilities: read, register, t, then the six cycles of fx_exp2.
  (* no_rw_check *) logic [16:0] probabilities[0:2*KEY_BLOCK-1];
  logic [20:0] read, held;
  logic [20:0] t;
  logic        unseen;
  fx_exp2 #(.T_BITS(21)) exp2 (.clk(clk), .t(t), .zero(unseen), .p(p));
  logic [16:0] feed_read;
  always_ff @(posedge clk) begin
    read <= scores[ex_at];
    held <= read;
    t <= {m, 11'd0} - {held[19], held[19:0]};
    unseen <= ~held[20];
    if (pr_write) probabilities[pr_at] <= p;
    feed_read <= probabilities[feed_at];
    feed <= feed_read;
  end

  // ---- Accumulators: one shifter, to the right by the rise, or reversed, which is to the left, by z.
  (* no_rw_check *) logic [39:0] accumulators[0:Q_PANELS*HEAD_DIM-1];
  logic [39:0] acc_read, acc, acc_new;
  logic signed [31:0] d1, d2, d3, d4;
  logic fin_1, fin_2, fin_3, half_1, half_2, clear;
  logic [4:0] z, by;
  logic [2:0] fine;
  logic signed [41:0] shift_in, coarse;  // one bit more to the left than the accumulator with its sign twice
  logic [40:0] shifted;
  wire [4:0] z_new;
  always_comb begin
    shift_in = {{2{acc[39]}}, acc};
    for (integer i = 0; i < 41; i = i + 1) if (fin_2) shift_in[i] = i == 0 ? acc[39] : acc[40-i];
    if (fin_2) shift_in[41] = 1'b0;
  end
  wire signed [41:0] shift_out = coarse >>> fine;
  logic [40:0] turned;
  always_comb begin
    for (integer i = 0; i < 41; i = i + 1) turned[i] = shift_out[fin_3?40-i:i];
  end
  always_ff @(posedge clk) begin
    acc_read <= accumulators[ac_at];
    {d1, fin_1, half_1} <= {result, ac_finish, ac_half};

    acc <= acc_read;
    {d2, fin_2, half_2} <= {d1, fin_1, half_1};
    by <= fin_1 ? z : {rises[half_1][3:0], 1'b0};

    coarse <= shift_in >>> {by[4:3], 3'b000};
    fine <= by[2:0];
    clear <= ~fin_2 & rises[half_2][4];
    {d3, fin_3} <= {d2, fin_2};

    shifted <= clear ? 41'd0 : turned;
    d4 <= d3;

    acc_new <= shifted[39:0] + {{8{d4[31]}}, d4};
    if (aw_write) accumulators[aw_at] <= acc_new;
  end
  assign q = shifted[40:12];

  // ---- The reciprocal r of the sum, and f = r * out_mul + 2^15 >> 16, bit by bit as r comes.
  wire r_valid;
  wire [15:0] r;
  logic [31:0] product;
  logic [31:0] rc_sum;
  logic rc_1;
  fx_reciprocal reciprocal (.clk(clk), .rst(rst), .start(rc_1), .sum(rc_sum), .done(), .bit_valid(r_valid), .r(r),
    .z(z_new));
  always_ff @(posedge clk) begin
    rc_1 <= rc;
    rc_sum <= rc_zero ? 32'd0 : sums[rc_panel];
    if (rc_1) product <= 32'd0;
    else if (r_valid) product <= {product[30:0], 1'b0} + (r[0] ? {16'd0, out_mul} : 32'd0);
    z <= z_new;
    f <= 16'((product + 32'h8000) >> 16);
  end
endmodule
`default_nettype wire
