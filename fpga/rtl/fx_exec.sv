// fx_exec: the engine EXEC. It holds the scratchpads, parameters and tables, the array with its feed, a lane behind each
// row of the array, and the sequencers of Gemm, Attention, Vector and Route that use them in turn.
//
// # Time
//
// Lane r does everything r cycles after lane 0: all control enters at lane 0 and goes from lane to lane through one register.
// Times below are those of lane 0 and of row 0; add r for another one.
//
// # Sequencers
//
// A sequencer (fx_gemm; at_* attention, ve_* vector, ro_* route) takes {cmd} with its own valid and ready and gives a done pulse for each command, in
// order, when all that it wrote can be read. It has the machine for itself from its first command until it is idle: a command of another
// kind waits for that. out_ok says that Out's constants (out_wide, out_relu ...) are those of its last command: they change when no
// value is on its way in the lanes. A sequencer injects values of tag 0 only while out_ok.
//
// # Feed: fd_*
//
// fd_valid & fd_ready in cycle t: WORD_BYTES elements of every row and column go into the array, at most one such slot every WORD_BYTES cycles,
// with any gaps between them.
//   fd_x_re, fd_x   word of X, X_BITS+1 bits: the highest says that it lies beyond the end (ErrScratch). Without fd_x_re the row operands are zero
//   fd_w_re, fd_w   word of W. Without fd_w_re the column operands are zero, and the slot does not count as multiplying
//   fd_probs        the row operands are probabilities that the lanes give (attention), not X
//   fd_first        the sums begin anew with this slot
//   fd_last         the sums are the results of a tile, with fd_tag; fd_ready stays low until the array has room for them
//   fd_slow         an element only every STEP cycles (SERIAL_MUL; operands of Vector); the slot takes STEP*WORD_BYTES cycles
//   fd_dst, fd_res, fd_par   with fd_last and tag 0: word of the results, of the residual, first record; again with one bit more
// Cycles:
//   t+3+i  element i is in row_byte (fd_slow: from t+3+STEP*i on, STEP cycles); with fd_probs the lane gives it in row_prob in this cycle
//   t+RES  column 0 of the tile is in lane 0 (S below), column j STEP*j cycles later
//
// # The scale path
//
// A value enters a lane's scale path from the array or from the lane parts of Attention and Vector. S is the cycle in which lane 0 gets it:
//   S        res_valid (from the array), res_tag, res_col, and of lane r in S+r the sum lane_res; or lane_inj_acc and lane_inj_mul of the lane part
//   S+T_LAT  t_valid, t_tag, t_col, and of lane r in S+T_LAT+r lane_t: sat24(acc·mul >> shift) + bias, 25 bits. A tag other than 0 ends here
//   S+PV+10  the word is written, if the value was the last of one
// To inject, a sequencer raises ij_valid with ij_tag; ij_valid & ij_ready in cycle S-2. ij_ready is low in cycles that the array's results take (and
// with SERIAL_MUL for STEP-1 cycles after each value).
// Multiplier, shift and bias come from the segment's records, one after the other. While attention is active they are alt_mul and alt_shift, which it gives
// in cycle S-1 for alt_tag, and no bias; with ij_own the multiplier is lane_inj_mul.
//
// # Segments
//
// Values of tag 0 are finished and go to consecutive words from a segment's start, take consecutive elements of the residual and consecutive
// records. The array's tiles bring their own (fd_dst ...). For injected values a sequencer raises sg_valid with sg_dst, sg_res and sg_par (sg_one: all take
// the first record); sg_valid & sg_ready comes before its first value is injected and after the last value of the segment before.
//
// # Elements of Y
//
// vy_re with vy_at (word, one bit more) and vy_byte in cycle q: the byte of lane r's Y is in lane_y in q+3+r. Not while out_residual.
`default_nettype none
`include "fx_config.svh"

module fx_exec #(
  parameter ROWS = `FX_ROWS,
  parameter COLS = `FX_COLS,
  parameter WORD_BYTES = `FX_WORD_BYTES,
  parameter X_WORDS = `FX_X_WORDS,
  parameter W_WORDS = `FX_W_WORDS,
  parameter Y_WORDS = `FX_Y_WORDS,
  parameter PARAMS = `FX_PARAMS,
  parameter TABLES = `FX_TABLES,
  parameter ACC_BITS = `FX_ACC_BITS,
  parameter A_BITS = `FX_A_BITS,
  parameter SERIAL_MUL = `FX_SERIAL_MUL,
  parameter ATTENTION = `FX_ATTENTION,
  parameter KEY_BLOCK = `FX_KEY_BLOCK,
  parameter HEAD_DIM = `FX_HEAD_DIM,
  parameter Q_PANELS = `FX_Q_PANELS,
  parameter ROUTER = `FX_ROUTER,
  parameter ONE = 0,               // cmd stays as it is until its done, one is under way at a time
  localparam ST_LATENCY = 3
) (
  input  wire                      clk,
  input  wire                      rst,
  // Descriptors: cmd stays as it is from two cycles before cmd_valid to cmd_ready; at most 7 are under way.
  input  wire                      cmd_valid,
  output wire                      cmd_ready,
  input  wire  [255:0]             cmd,
  output logic                     done,
  output logic                     err_valid,   // stays until reset
  output logic [3:0]               err_code,
  output wire                      busy,
  output wire                      multiply,
  // Writes of LOAD: a word that is taken can be read from the next cycle on; in tables it takes WORD_BYTES cycles. With ld_new
  // ld_space and ld_lane are what ld_next_* were in the cycle before, without it what they were themselves.
  input  wire                      ld_valid,
  output wire                      ld_ready,
  input  wire                      ld_new,
  input  wire  [2:0]               ld_next_space,
  input  wire  [5:0]               ld_next_lane,
  input  wire  [2:0]               ld_space,
  input  wire  [5:0]               ld_lane,
  input  wire  [15:0]              ld_addr,
  input  wire  [8*WORD_BYTES-1:0]  ld_data,
  // Reads of STORE: st_rvalid and st_rdata ST_LATENCY cycles after st_valid and st_ready.
  input  wire                      st_valid,
  output wire                      st_ready,
  input  wire  [2:0]               st_space,
  input  wire  [5:0]               st_lane,
  input  wire  [15:0]              st_addr,
  output wire                      st_rvalid,
  output wire  [8*WORD_BYTES-1:0]  st_rdata,
  // Lists, read by LOAD (0) and STORE (1): one cycle later token, rank and the list's count.
  input  wire  [7:0]               ls0_list,
  input  wire  [15:0]              ls0_index,
  output wire  [15:0]              ls0_token,
  output wire  [2:0]               ls0_rank,
  output wire  [15:0]              ls0_count,
  input  wire  [7:0]               ls1_list,
  input  wire  [15:0]              ls1_index,
  output wire  [15:0]              ls1_token,
  output wire  [2:0]               ls1_rank,
  output wire  [15:0]              ls1_count,
  // The count for the registers.
  input  wire  [7:0]               ct_list,
  output wire  [15:0]              ct_count,
  output wire  [31:0]              dropped
);
  localparam X_BITS = X_WORDS > 1 ? $clog2(X_WORDS) : 1;
  localparam W_BITS = W_WORDS > 1 ? $clog2(W_WORDS) : 1;
  localparam Y_BITS = Y_WORDS > 1 ? $clog2(Y_WORDS) : 1;
  localparam P_BITS = PARAMS > 1 ? $clog2(PARAMS) : 1;
  localparam D_BITS = X_BITS > W_BITS ? (X_BITS > Y_BITS ? X_BITS : Y_BITS) : (W_BITS > Y_BITS ? W_BITS : Y_BITS);
  localparam R_BITS = $clog2(ROWS);
  localparam C_BITS = $clog2(COLS);
  localparam B_BITS = $clog2(WORD_BYTES);
  localparam TABLE_BITS = TABLES > 1 ? $clog2(TABLES) : 1;
  localparam WORD = 8 * WORD_BYTES;
  localparam TAG_BITS = 2;
  localparam MUL_BITS = ATTENTION ? 17 : 16;
  localparam WIDE_A = A_BITS > 8;   // probabilities: one more stage before the array
  localparam STEP = SERIAL_MUL ? 17 : 2;
  localparam PV = SERIAL_MUL ? 17 : 3;
  localparam T_LAT = PV + 5;
  localparam LATE = SERIAL_MUL && COLS > 16 ? COLS - 16 : 0;
  localparam RES = WORD_BYTES + 5 + (WIDE_A ? 1 : 0) + (SERIAL_MUL ? 1 : 0) + LATE;
  // From one tile's last slot to the next one's: the result registers, the segment's registers, the registers of the tile that comes.
  localparam GAP_0 = STEP * COLS + LATE;
  localparam GAP_1 = GAP_0 > PV + 10 ? GAP_0 : PV + 10;
  localparam GAP = GAP_1 > RES ? GAP_1 : RES;
  localparam DONE_LATENCY = RES + STEP * (COLS - 1) + PV + 10 + ROWS;
  localparam GATE_BITS = ROUTER ? $clog2(`FX_TOKENS) + (`FX_TOP_K > 2 ? 2 : 1) : 1;
  // What goes from lane to lane for Vector and Route: see fx_vector_lane and fx_route_lane.
  localparam VO_BITS = 32;
  localparam RO_BITS = 11;
  localparam RB_BITS = 17 + 24 * `FX_TOP_K;
  localparam CTL_BITS = 4 + R_BITS + MUL_BITS + 6 + 1 + Y_BITS + B_BITS + 2 + R_BITS + 24 + 2 + D_BITS;

  genvar r, c;

  // ---------------------------------------------------------------- sequencers
  localparam [1:0] GEMM = 0, ATTN = 1, VECTOR = 2, ROUTE = 3;
  wire [3:0] op = cmd[3:0];
  wire [1:0] wanted = op == `FX_OP_ATTENTION ? ATTN : op == `FX_OP_VECTOR ? VECTOR : op == `FX_OP_ROUTE ? ROUTE : GEMM;
  logic [1:0] who;
  logic stopped, early;     // early: the youngest command is wrong
  logic [2:0] under_way;    // commands
  wire gm_idle, at_idle, ve_idle, ro_idle, gm_ready, at_ready, ve_ready, ro_ready, gm_done, at_done, ve_done, ro_done;
  wire all_idle = gm_idle && at_idle && ve_idle && ro_idle;
  wire wrong;   // what a sequencer's youngest command asks for, in the cycle before
  // A sequencer's turn is known a cycle after the command or `who` has changed: cmd stands longer than that before it is valid.
  logic [3:0] active, turn;   // one of them
  wire may = !stopped && (ONE || !wrong);
  wire gm_valid = cmd_valid && turn[GEMM] && may;
  wire at_valid = cmd_valid && turn[ATTN] && may;
  wire ve_valid = cmd_valid && turn[VECTOR] && may;
  wire ro_valid = cmd_valid && turn[ROUTE] && may;
  assign cmd_ready = may && |(turn & {ro_ready, ve_ready, at_ready, gm_ready});
  wire all_done = gm_done || at_done || ve_done || ro_done;
  // A command that is wrong is not done: its error is told when those before it are.
  always_ff @(posedge clk) done <= all_done && !rst && !err_valid && !(early && under_way == 3'd1);
  assign busy = !all_idle;
  wire take = cmd_valid && cmd_ready;
  always_ff @(posedge clk) begin
    if (rst) {who, active} <= {GEMM, 4'b1};
    else if (all_idle && cmd_valid) {who, active} <= {wanted, 4'b1 << wanted};
    turn <= rst || who != wanted ? '0 : active;
  end

  // Out's constants: next_all of the last command, out_* in the lanes.
  wire out_row, out_residual, out_relu, out_wide, out_use_table;
  wire [2:0] out_space;
  wire [7:0] out_zero;
  wire [15:0] out_res_mul;
  wire [TABLE_BITS-1:0] out_table;
  wire quiet, out_ok, at_out_new, at_out_wide;
  wire [2:0] at_out_space;
  localparam OUT_BITS = 5 + TABLE_BITS + 3 + 8 + 16;
  logic [OUT_BITS-1:0] out_all;
  wire has_out = op == `FX_OP_GEMM || op == `FX_OP_VECTOR;
  wire [OUT_BITS-1:0] cmd_all = {op == `FX_OP_GEMM && cmd[`FX_GEMM_ROWPARAM], has_out && cmd[`FX_GEMM_RESIDUAL],
    has_out && cmd[`FX_GEMM_RELU], cmd[`FX_GEMM_WIDE], has_out && cmd[`FX_GEMM_TABLE] != 0 && !cmd[`FX_GEMM_WIDE],
    TABLE_BITS'(cmd[`FX_GEMM_TABLE] - 3'd1), cmd[`FX_GEMM_SPACE], has_out ? cmd[`FX_GEMM_ZERO] : 8'd0, cmd[`FX_GEMM_RESMUL]};
  assign {out_row, out_residual, out_relu, out_wide, out_use_table, out_table, out_space, out_zero, out_res_mul} = out_all;
  wire by_row = out_row && who == GEMM;   // attention's scores come before its results, while out_* are still those of a Gemm
  logic out_err;   // Space or Table is none of this overlay's
  always_ff @(posedge clk)
    out_err <= !rst && take && ((has_out && !(op == `FX_OP_GEMM && cmd[`FX_GEMM_HOLD])) || op == `FX_OP_ATTENTION) &&
      (cmd[`FX_GEMM_SPACE] > `FX_SPACE_W || (cmd[`FX_GEMM_SPACE] == `FX_SPACE_W && ROWS != COLS) || (has_out && 32'(cmd[`FX_GEMM_TABLE]) > TABLES));
  generate
    if (ONE && !ATTENTION) begin : direct
      // Nothing is on its way when cmd changes.
      assign out_all = cmd_all;
      assign out_ok = 1'b1;
    end else begin : kept
      logic out_new;
      logic [OUT_BITS-1:0] next_all;
      wire same = next_all == out_all;
      assign out_ok = !out_new;
      always_ff @(posedge clk) begin
        if (take && wanted != ATTN) next_all <= cmd_all;
        // Constants that stay the same need not wait.
        out_new <= !rst && ((take && wanted != ATTN) || (out_new && !quiet && !same));
        if (out_new && quiet) out_all <= next_all;
        // Attention begins a descriptor while it finishes the one before: it says itself when it comes to the results.
        if (at_out_new) out_all <= {3'b0, at_out_wide, 1'b0, {TABLE_BITS{1'b0}}, at_out_space, 24'b0};
      end
    end
  endgenerate

  // What the sequencers ask of the feed, the lanes and the memories.
  wire fd_ready, ij_ready, sg_ready, rr_busy;
  wire [TAG_BITS-1:0] alt_tag;
  wire res_valid, t_valid;
  wire [TAG_BITS-1:0] res_tag, t_tag;
  wire [C_BITS-1:0] res_col, t_col;

  wire gm_fd_valid, gm_fd_first, gm_fd_last, gm_err, rr_valid;
  wire [X_BITS:0] gm_fd_x;
  wire [W_BITS:0] gm_fd_w;
  wire [D_BITS:0] gm_fd_dst;
  wire [Y_BITS:0] gm_fd_res;
  wire [P_BITS:0] gm_fd_par, rr_par;
  wire [7:0] gm_list;
  wire [15:0] gm_list_count;
  fx_gemm #(
    .ROWS(ROWS), .COLS(COLS), .WORD_BYTES(WORD_BYTES), .ROUTER(ROUTER), .X_BITS(X_BITS), .W_BITS(W_BITS), .Y_BITS(Y_BITS),
    .D_BITS(D_BITS), .P_BITS(P_BITS), .SERIAL_MUL(SERIAL_MUL), .ONE(ONE), .DONE_LATENCY(DONE_LATENCY)
  ) gemm (
    .clk(clk), .rst(rst), .cmd_valid(gm_valid), .cmd_ready(gm_ready), .cmd(cmd), .done(gm_done), .idle(gm_idle), .list(gm_list),
    .list_count(gm_list_count), .fd_valid(gm_fd_valid), .fd_ready(fd_ready && active[GEMM]), .fd_x(gm_fd_x), .fd_w(gm_fd_w),
    .fd_first(gm_fd_first), .fd_last(gm_fd_last), .fd_dst(gm_fd_dst), .fd_res(gm_fd_res), .fd_par(gm_fd_par), .err(gm_err), .out_ok(out_ok),
    .quiet(quiet), .by_row(out_row), .rr_valid(rr_valid), .rr_busy(rr_busy), .rr_par(rr_par));

  // Attention's sequencer.
  localparam [TAG_BITS-1:0] SCORE = 1, PV_SUM = 2;
  localparam KEY_BITS = $clog2(KEY_BLOCK) + 1;
  localparam PANEL_BITS = Q_PANELS > 1 ? $clog2(Q_PANELS) : 1;
  localparam AT_BITS = 4 * KEY_BITS + 2 * PANEL_BITS + 2 * (PANEL_BITS + $clog2(HEAD_DIM)) + 23;
  wire at_fd_valid, at_fd_probs, at_fd_first, at_fd_last, at_ij_valid, at_sg_valid, at_err;
  wire [X_BITS:0] at_fd_x;
  wire [W_BITS:0] at_fd_w;
  wire [D_BITS:0] at_sg_dst;
  wire [15:0] at_out_mul;
  wire [MUL_BITS-1:0] alt_mul;
  wire [5:0] alt_shift;
  wire [AT_BITS-1:0] at_ctl;
  generate
    if (ATTENTION) begin : attention
      wire [14:0] score_mul;
      wire [5:0] score_shift, out_shift;
      fx_attention #(
        .ROWS(ROWS), .COLS(COLS), .WORD_BYTES(WORD_BYTES), .KEY_BLOCK(KEY_BLOCK), .HEAD_DIM(HEAD_DIM), .Q_PANELS(Q_PANELS),
        .X_BITS(X_BITS), .W_BITS(W_BITS), .D_BITS(D_BITS), .RES(RES), .LATENCY(PV + 10 + ROWS)
      ) sequencer (
        .clk(clk), .rst(rst), .cmd_valid(at_valid), .cmd_ready(at_ready), .cmd(cmd), .done(at_done), .idle(at_idle), .err(at_err),
        .fd_valid(at_fd_valid), .fd_ready(fd_ready && active[ATTN]), .fd_x(at_fd_x), .fd_w(at_fd_w), .fd_probs(at_fd_probs),
        .fd_first(at_fd_first), .fd_last(at_fd_last), .res_score(res_valid && res_tag == SCORE), .res_pv(res_valid && res_tag == PV_SUM),
        .res_last(res_col == C_BITS'(COLS - 1)), .t_score(t_valid && t_tag == SCORE), .score_mul(score_mul), .score_shift(score_shift),
        .ij_valid(at_ij_valid), .sg_valid(at_sg_valid), .sg_ready(sg_ready), .sg_dst(at_sg_dst), .out_new(at_out_new),
        .out_wide(at_out_wide), .out_space(at_out_space), .out_mul(at_out_mul), .out_shift(out_shift), .ctl(at_ctl));
      assign alt_mul = {2'b0, score_mul};
      assign alt_shift = alt_tag == SCORE ? score_shift : out_shift;
    end else begin : attention
      assign at_idle = 1'b1;
      assign {at_ready, at_done, at_fd_valid, at_fd_probs, at_fd_first, at_fd_last, at_ij_valid, at_sg_valid, at_out_new, at_out_wide,
              at_err, at_fd_x, at_fd_w, at_sg_dst, at_out_space, at_out_mul, alt_mul, alt_shift, at_ctl} = '0;
    end
  endgenerate

  // Vector's sequencer.
  wire ve_fd_valid, ve_fd_slow, ve_ij_valid, ve_sg_valid, ve_sg_one, vy_re;
  wire [X_BITS:0] ve_fd_x;
  wire [D_BITS:0] ve_sg_dst;
  wire [Y_BITS:0] ve_sg_res, vy_at;
  wire [P_BITS:0] ve_sg_par;
  wire [B_BITS-1:0] vy_byte;
  wire ve_err;
  wire [3:0] ve_err_code;
  wire [VO_BITS-1:0] lane_vo [0:ROWS];
  wire [12:0] ve_count;
  wire ve_mean;
  wire [31:0] ve_eps;
  wire [GATE_BITS-1:0] gate_at;
  wire [15:0] gate_read;
  assign ve_fd_slow = SERIAL_MUL != 0;
  fx_vector #(
    .ROWS(ROWS), .WORD_BYTES(WORD_BYTES), .ROUTER(ROUTER), .SERIAL_MUL(SERIAL_MUL), .STEP(STEP), .X_BITS(X_BITS), .Y_BITS(Y_BITS),
    .D_BITS(D_BITS), .P_BITS(P_BITS), .GATE_BITS(GATE_BITS), .ONE(ONE), .DRAIN(PV + 12 + ROWS)
  ) vector (
    .clk(clk), .rst(rst), .cmd_valid(ve_valid), .cmd_ready(ve_ready), .cmd(cmd), .out_ok(out_ok), .done(ve_done), .idle(ve_idle),
    .err_valid(ve_err), .err_code(ve_err_code), .fd_valid(ve_fd_valid), .fd_ready(fd_ready && active[VECTOR]), .fd_x(ve_fd_x),
    .vy_re(vy_re), .vy_at(vy_at), .vy_byte(vy_byte), .ij_valid(ve_ij_valid), .sg_valid(ve_sg_valid), .sg_ready(sg_ready),
    .sg_dst(ve_sg_dst), .sg_res(ve_sg_res), .sg_par(ve_sg_par), .sg_one(ve_sg_one), .lane(lane_vo[0]), .count(ve_count), .mean(ve_mean),
    .eps(ve_eps), .gm_addr(gate_at), .gm_gate(gate_read));

  // Router.
  wire ro_fd_valid, ro_err;
  wire [X_BITS:0] ro_fd_x;
  wire [RO_BITS-1:0] lane_ro [0:ROWS];
  wire [RB_BITS-1:0] lane_rb [0:ROWS];   // back, from the last lane to the first
  assign lane_rb[ROWS] = '0;
  generate
    if (ROUTER) begin : router
      fx_route #(.ROWS(ROWS), .WORD_BYTES(WORD_BYTES), .X_BITS(X_BITS), .GATE_BITS(GATE_BITS)) route (
        .clk(clk), .rst(rst), .cmd_valid(ro_valid), .cmd_ready(ro_ready), .cmd(cmd), .done(ro_done), .idle(ro_idle), .err_valid(ro_err),
        .fd_valid(ro_fd_valid), .fd_ready(fd_ready && active[ROUTE]), .fd_x(ro_fd_x), .lane(lane_ro[0]), .back(lane_rb[0]),
        .gm_addr(gate_at), .gm_gate(gate_read), .ls_list({ls1_list, ls0_list}), .ls_index({ls1_index, ls0_index}),
        .ls_token({ls1_token, ls0_token}), .ls_rank({ls1_rank, ls0_rank}), .ls_count({ls1_count, ls0_count}), .ct_list({gm_list, ct_list}),
        .ct_count({gm_list_count, ct_count}), .dropped(dropped));
    end else begin : no_router
      assign ro_idle = 1'b1;
      assign {ro_ready, ro_done, ro_err, ro_fd_valid, ro_fd_x, lane_ro[0], gate_read} = '0;
      assign {ls0_token, ls0_rank, ls0_count, ls1_token, ls1_rank, ls1_count, ct_count, dropped, gm_list_count} = '0;
    end
  endgenerate

  // ---------------------------------------------------------------- feed
  wire fd_valid = gm_fd_valid || at_fd_valid || ve_fd_valid || ro_fd_valid;
  wire fd_x_re = who != ATTN || !at_fd_probs;
  wire fd_w_re = who == GEMM || who == ATTN;
  wire fd_probs = who == ATTN && at_fd_probs;
  wire fd_slow = SERIAL_MUL != 0 && who == VECTOR && ve_fd_slow;
  wire fd_first = (active[GEMM] && gm_fd_first) || (active[ATTN] && at_fd_first);
  wire fd_last = (active[GEMM] && gm_fd_last) || (active[ATTN] && at_fd_last);
  wire [TAG_BITS-1:0] fd_tag = who != ATTN ? '0 : at_fd_probs ? PV_SUM : SCORE;
  wire [X_BITS:0] fd_x = who == GEMM ? gm_fd_x : who == ATTN ? at_fd_x : who == VECTOR ? ve_fd_x : ro_fd_x;
  wire [W_BITS:0] fd_w = who == GEMM ? gm_fd_w : at_fd_w;

  localparam S_BITS = SERIAL_MUL ? B_BITS + 5 : B_BITS;
  logic [S_BITS-1:0] slot;           // cycles of the slot that are left
  logic gap_ends, open;              // none are; a slot may begin, if it is not the last of a tile and too early
  logic begun;                       // the slot's first
  logic [$clog2(GAP+1)-1:0] gap;     // cycles until a tile may end
  logic on, slow, first_slot, last_slot, multiplies, feed_ld, feed_x_re, feed_w_re, feed_probs;
  logic [X_BITS-1:0] feed_x;
  logic [W_BITS-1:0] feed_w;
  logic fd_err;
  wire feed_shift, wipe, wiped, unclean;
  assign fd_ready = open && (!fd_last || gap_ends) && !unclean;
  wire fed = fd_valid && fd_ready;
  wire tile = fed && fd_last;
  always_ff @(posedge clk) begin
    slot <= rst ? '0 : fed ? (fd_slow ? S_BITS'(STEP * WORD_BYTES - 1) : S_BITS'(WORD_BYTES - 1)) : slot - S_BITS'(slot != 0);
    open <= !rst && !fed && slot <= S_BITS'(1) && !stopped && !wipe && !(SERIAL_MUL && slot != 0 && last_slot);
    gap_ends <= rst || (!tile && gap <= ($clog2(GAP+1))'(1));
    begun <= fed;
    gap <= rst ? '0 : tile ? ($clog2(GAP+1))'(GAP - 1) : gap - ($clog2(GAP+1))'(gap != 0);
    on <= !rst && (fed || slot != 0);
    feed_ld <= fed;
    if (fed) begin
      slow <= fd_slow;
      {first_slot, last_slot, multiplies} <= {fd_first, fd_last, fd_w_re};
      {feed_x_re, feed_w_re, feed_probs} <= {fd_x_re, fd_w_re, fd_probs};
      {feed_x, feed_w} <= {fd_x[X_BITS-1:0], fd_w[W_BITS-1:0]};
    end
    fd_err <= !rst && fed && ((fd_x_re && fd_x[X_BITS]) || (fd_w_re && fd_w[W_BITS]));
  end
  assign multiply = on && multiplies;

  generate
    if (SERIAL_MUL) begin : serial
      // Slow elements stay for STEP cycles each.
      logic [4:0] stay;
      always_ff @(posedge clk) stay <= fed || stay == 5'd0 ? 5'(STEP - 1) : stay - 5'd1;
      assign feed_shift = !on || !slow || stay == 5'(STEP - 1);
      // A tile's last element, which makes the sums zero, is followed by a cycle without one. Sums of a Hold that no More follows
      // are wiped out as if they were results, when those before have left.
      logic dirty, wiped_q;
      assign wipe = fd_valid && unclean && slot == 0 && gap_ends && !on;
      always_ff @(posedge clk) begin
        dirty <= rst || (fed ? !fd_last : dirty && !wipe);  // a reset may come in the middle of a slot
        wiped_q <= wipe || rst;
      end
      assign wiped = wiped_q;
      assign unclean = fd_first && dirty;
    end else begin : whole
      assign {feed_shift, wipe, wiped, unclean} = 4'b1000;
    end
  endgenerate

  // The first and the last element's flags reach row 0 with the operands, two cycles after the word is asked for, and one more for probabilities.
  localparam FLAGS = WIDE_A ? 3 : 2;
  logic [FLAGS-1:0] first_d, last_d;
  always_ff @(posedge clk) begin
    first_d <= {first_d[FLAGS-2:0], begun && first_slot};
    last_d <= {last_d[FLAGS-2:0], (on && last_slot && slot == 0) || wiped};
  end

  // ---------------------------------------------------------------- memories and feeds
  wire [CTL_BITS-1:0] lane_ctl [0:ROWS];
  wire [ROWS-1:0] lane_y_re, lane_w_valid;
  wire [Y_BITS-1:0] lane_y_at [0:ROWS-1];
  wire [D_BITS-1:0] lane_w_at [0:ROWS-1];
  wire [WORD-1:0] lane_w_word [0:ROWS-1];
  wire [WORD-1:0] x_word [0:ROWS-1];
  wire [WORD-1:0] y_word [0:ROWS-1];
  wire [ROWS*8-1:0] row_byte, lane_y;
  wire [ROWS*A_BITS-1:0] row_operand;
  wire [ROWS*17-1:0] row_prob;
  wire [COLS*8-1:0] col_operand;
  wire [ROWS:0] row_ld;

  // STORE reads a lane's X or Y when the lane itself does not; LOAD writes when it does not.
  wire [ROWS-1:0] row_reads = row_ld[ROWS-1:0];
  assign st_ready = st_space == `FX_SPACE_X ? !row_reads[R_BITS'(st_lane)] : !lane_y_re[R_BITS'(st_lane)];
  // Whether the lane itself writes to where LOAD does is known a cycle before: it does what its neighbour did, lane 0 what lane_writes says.
  logic lane_there, lane_next;
  wire lane_writes;
  wire [ROWS-1:0] will_write = {lane_w_valid[ROWS-2:0], lane_writes};
  always_ff @(posedge clk) begin
    lane_there <= will_write[R_BITS'(ld_lane)] && ld_space == out_space;
    lane_next <= will_write[R_BITS'(ld_next_lane)] && ld_next_space == out_space;
  end
  wire own_write = ld_new ? lane_next : lane_there;
  logic [B_BITS-1:0] table_byte;
  wire table_write = TABLES > 0 && ld_valid && ld_space == `FX_SPACE_TABLE;
  assign ld_ready = ld_space == `FX_SPACE_TABLE ? table_byte == B_BITS'(WORD_BYTES - 1) : !own_write;
  logic tw_valid;
  logic [TABLE_BITS+7:0] tw_at;
  logic [7:0] tw_data;
  always_ff @(posedge clk) begin
    table_byte <= rst ? '0 : table_byte + B_BITS'(table_write);
    tw_valid <= table_write;
    tw_at <= (TABLE_BITS+8)'({ld_addr, table_byte});
    tw_data <= ld_data[8*table_byte +: 8];
  end

  // What goes from row to row and from column to column: index 0 is what the first gets.
  wire [ROWS:0] row_re, row_shift, row_probs, row_live;
  wire [COLS:0] col_ld, col_re;
  wire [X_BITS-1:0] row_at [0:ROWS];
  wire [W_BITS-1:0] col_at [0:COLS];
  assign {row_ld[0], row_re[0], row_shift[0], row_probs[0], row_live[0]} = {feed_ld, feed_x_re, feed_shift, feed_probs, on};
  assign {col_ld[0], col_re[0]} = {feed_ld, feed_w_re};
  assign row_at[0] = feed_x;
  assign col_at[0] = feed_w;

  generate
    for (r = 0; r < ROWS; r = r + 1) begin : row
      fx_feed #(.WORD_BYTES(WORD_BYTES), .ADDR_BITS(X_BITS)) feed (
        .clk(clk), .ld_i(row_ld[r]), .re_i(row_re[r]), .at_i(row_at[r]), .shift_i(row_shift[r]), .ld_o(row_ld[r+1]), .re_o(row_re[r+1]),
        .at_o(row_at[r+1]), .shift_o(row_shift[r+1]), .word(x_word[r]), .element(row_byte[8*r +: 8]));
      wire own = lane_w_valid[r] && out_space == `FX_SPACE_X;
      fx_ram #(.WIDTH(WORD), .DEPTH(X_WORDS)) ram (
        .clk(clk), .we(own || (ld_valid && ld_space == `FX_SPACE_X && ld_lane == 6'(r))), .waddr(own ? X_BITS'(lane_w_at[r]) : X_BITS'(ld_addr)),
        .wdata(own ? lane_w_word[r] : ld_data), .raddr(row_ld[r] ? row_at[r] : X_BITS'(st_addr)), .rdata(x_word[r]));

      wire own_y = lane_w_valid[r] && out_space == `FX_SPACE_Y;
      fx_ram #(.WIDTH(WORD), .DEPTH(Y_WORDS)) ram_y (
        .clk(clk), .we(own_y || (ld_valid && ld_space == `FX_SPACE_Y && ld_lane == 6'(r))),
        .waddr(own_y ? Y_BITS'(lane_w_at[r]) : Y_BITS'(ld_addr)), .wdata(own_y ? lane_w_word[r] : ld_data),
        .raddr(lane_y_re[r] ? lane_y_at[r] : Y_BITS'(st_addr)), .rdata(y_word[r]));

      if (WIDE_A) begin : operand
        // row_probs comes with the word's address and row_live with each element's cycle, two cycles before the element.
        logic probs_1, probs_2, live_1, live_2;
        logic signed [A_BITS-1:0] a;
        wire signed [7:0] element = row_byte[8*r +: 8];
        always_ff @(posedge clk) begin
          {probs_1, probs_2} <= {row_probs[r], probs_1};
          {live_1, live_2} <= {row_live[r], live_1};
          a <= !probs_2 ? A_BITS'(element) : live_2 ? A_BITS'(row_prob[17*r +: 17]) : '0;
        end
        assign {row_probs[r+1], row_live[r+1]} = {probs_1, live_1};
        assign row_operand[A_BITS*r +: A_BITS] = a;
      end else begin : operand
        assign row_operand[A_BITS*r +: A_BITS] = row_byte[8*r +: 8];
        assign {row_probs[r+1], row_live[r+1]} = 2'b0;
      end
    end

    for (c = 0; c < COLS; c = c + 1) begin : col
      wire [WORD-1:0] word;
      wire [7:0] element;
      wire shift_next;   // columns shift always
      fx_feed #(.WORD_BYTES(WORD_BYTES), .ADDR_BITS(W_BITS)) feed (
        .clk(clk), .ld_i(col_ld[c]), .re_i(col_re[c]), .at_i(col_at[c]), .shift_i(1'b1), .ld_o(col_ld[c+1]), .re_o(col_re[c+1]),
        .at_o(col_at[c+1]), .shift_o(shift_next), .word(word), .element(element));
      wire own;
      wire [W_BITS-1:0] own_at;
      wire [WORD-1:0] own_word;
      if (ROWS == COLS) begin : results
        assign own = lane_w_valid[c] && out_space == `FX_SPACE_W;
        assign {own_at, own_word} = {W_BITS'(lane_w_at[c]), lane_w_word[c]};
      end else begin : loads
        assign {own, own_at, own_word} = '0;
      end
      fx_ram #(.WIDTH(WORD), .DEPTH(W_WORDS)) ram (
        .clk(clk), .we(own || (ld_valid && ld_space == `FX_SPACE_W && ld_lane == 6'(c))), .waddr(own ? own_at : W_BITS'(ld_addr)),
        .wdata(own ? own_word : ld_data), .raddr(col_at[c]), .rdata(word));
      if (WIDE_A) begin : operand
        logic [7:0] w;
        always_ff @(posedge clk) w <= element;
        assign col_operand[8*c +: 8] = w;
      end else begin : operand
        assign col_operand[8*c +: 8] = element;
      end
    end
  endgenerate

  // ---------------------------------------------------------------- array and lanes
  wire [ROWS*ACC_BITS-1:0] lane_res, lane_inj_acc;
  wire [ROWS*MUL_BITS-1:0] lane_inj_mul;
  wire [ROWS*25-1:0] lane_t;
  wire array_shift, lane_err;
  fx_array #(.ROWS(ROWS), .COLS(COLS), .A_BITS(A_BITS), .ACC_BITS(ACC_BITS), .SERIAL_MUL(SERIAL_MUL)) array (
    .clk(clk), .a(row_operand), .w(col_operand), .first(first_d[FLAGS-1]), .last(last_d[FLAGS-1]), .shift(array_shift), .res(lane_res));

  fx_lane_control #(
    .ROWS(ROWS), .COLS(COLS), .WORD_BYTES(WORD_BYTES), .MUL_BITS(MUL_BITS), .SERIAL_MUL(SERIAL_MUL), .PARAMS(PARAMS), .TAG_BITS(TAG_BITS), .TAGGED(ATTENTION),
    .X_BITS(X_BITS), .W_BITS(W_BITS), .Y_BITS(Y_BITS), .D_BITS(D_BITS), .CTL_BITS(CTL_BITS), .RES(RES), .STEP(STEP), .PV(PV)
  ) control (
    .clk(clk), .rst(rst), .tile(tile), .tile_tag(fd_tag), .tile_dst(gm_fd_dst), .tile_res(gm_fd_res), .tile_par(gm_fd_par),
    .rr_valid(rr_valid), .rr_par(rr_par), .rr_busy(rr_busy),
    .sg_valid(at_sg_valid || ve_sg_valid), .sg_ready(sg_ready), .sg_dst(who == ATTN ? at_sg_dst : ve_sg_dst), .sg_res(ve_sg_res),
    .sg_par(ve_sg_par), .sg_one(ve_sg_one), .ij_valid(at_ij_valid || ve_ij_valid), .ij_ready(ij_ready),
    .ij_tag('0), .ij_own(at_ij_valid),
    .alt(who == ATTN), .alt_tag(alt_tag), .alt_mul(alt_mul), .alt_shift(alt_shift), .vy_re(vy_re), .vy_at(vy_at), .vy_byte(vy_byte),
    .by_row(by_row), .residual(out_residual), .wide(out_wide), .space(out_space),
    .pw_valid(ld_valid && ld_space == `FX_SPACE_PARAMS), .pw_at(ld_addr), .pw_data(ld_data), .ctl(lane_ctl[0]), .shift(array_shift),
    .res_valid(res_valid), .res_tag(res_tag), .res_col(res_col), .t_valid(t_valid), .t_tag(t_tag), .t_col(t_col), .quiet(quiet), .writes(lane_writes),
    .err(lane_err));

  // What holds while values are on their way goes from lane to lane as they do: a lane's results wait for no wire across the array.
  localparam LANE_OUT_BITS = 4 + TABLE_BITS + 8 + 16;
  wire [LANE_OUT_BITS-1:0] lane_out [0:ROWS];
  wire [46:0] lane_ve [0:ROWS];
  assign lane_out[0] = {out_residual, out_relu, out_wide, out_use_table, out_table, out_zero, out_res_mul};
  assign lane_ve[0] = {who == VECTOR, ve_count, ve_mean, ve_eps};

  wire [AT_BITS-1:0] lane_at [0:ROWS];
  assign lane_at[0] = at_ctl;
  generate
    for (r = 0; r < ROWS; r = r + 1) begin : parts
      logic [46:0] ve_next;
      always_ff @(posedge clk) ve_next <= lane_ve[r];
      assign lane_ve[r+1] = ve_next;
      wire of_vector, mean;
      wire [12:0] count;
      wire [31:0] eps;
      assign {of_vector, count, mean, eps} = lane_ve[r];
      wire signed [31:0] acc, at_acc;
      assign lane_inj_acc[ACC_BITS*r +: ACC_BITS] = of_vector ? acc[ACC_BITS-1:0] : at_acc[ACC_BITS-1:0];
      fx_vector_lane #(.ROUTER(ROUTER), .SERIAL_MUL(SERIAL_MUL), .WORD_BYTES(WORD_BYTES)) vector_lane (
        .clk(clk), .lane_i(lane_vo[r]), .lane_o(lane_vo[r+1]), .count(count), .mean(mean), .eps(eps), .x_i(row_byte[8*r +: 8]),
        .y(lane_y[8*r +: 8]), .acc(acc));
      if (ROUTER) begin : routes
        fx_route_lane route_lane (
          .clk(clk), .lane_i(lane_ro[r]), .lane_o(lane_ro[r+1]), .x(row_byte[8*r +: 8]), .back_i(lane_rb[r+1]), .back_o(lane_rb[r]));
      end else begin : no_routes
        assign {lane_ro[r+1], lane_rb[r]} = '0;
      end
      if (ATTENTION) begin : softmax
        wire signed [28:0] q;
        wire [15:0] f;
        fx_softmax #(.KEY_BLOCK(KEY_BLOCK), .HEAD_DIM(HEAD_DIM), .Q_PANELS(Q_PANELS)) softmax_lane (
          .clk(clk), .rst(rst), .ctl(lane_at[r]), .ctl_next(lane_at[r+1]), .score(lane_t[25*r +: 24]), .result(lane_res[ACC_BITS*r +: ACC_BITS]),
          .out_mul(at_out_mul), .feed(row_prob[17*r +: 17]), .q(q), .f(f));
        assign at_acc = 32'(q);
        assign lane_inj_mul[MUL_BITS*r +: MUL_BITS] = MUL_BITS'(f);
      end else begin : no_softmax
        assign {at_acc, lane_inj_mul[MUL_BITS*r +: MUL_BITS], row_prob[17*r +: 17], lane_at[r+1]} = '0;
      end
    end
  endgenerate
  generate
    for (r = 0; r < ROWS; r = r + 1) begin : lanes
      logic [LANE_OUT_BITS-1:0] out_next;
      always_ff @(posedge clk) out_next <= lane_out[r];
      assign lane_out[r+1] = out_next;
      wire residual, relu, wide, use_table;
      wire [TABLE_BITS-1:0] table_at;
      wire [7:0] zero;
      wire [15:0] res_mul;
      assign {residual, relu, wide, use_table, table_at, zero, res_mul} = lane_out[r];
      fx_lane #(
        .ROWS(ROWS), .WORD_BYTES(WORD_BYTES), .ACC_BITS(ACC_BITS), .MUL_BITS(MUL_BITS), .SERIAL_MUL(SERIAL_MUL), .TABLES(TABLES),
        .Y_BITS(Y_BITS), .D_BITS(D_BITS)
      ) lane (
        .clk(clk), .ctl(lane_ctl[r]), .ctl_next(lane_ctl[r+1]), .res(lane_res[ACC_BITS*r +: ACC_BITS]), .inj_acc(lane_inj_acc[ACC_BITS*r +: ACC_BITS]),
        .inj_mul(lane_inj_mul[MUL_BITS*r +: MUL_BITS]), .t(lane_t[25*r +: 25]), .by_row(by_row), .residual(residual),
        .relu(relu), .wide(wide), .zero(zero), .res_mul(res_mul), .use_table(use_table), .table_at(table_at),
        .tw_valid(tw_valid), .tw_at(tw_at), .tw_data(tw_data), .y_re(lane_y_re[r]), .y_at(lane_y_at[r]), .y_word(y_word[r]),
        .y(lane_y[8*r +: 8]), .w_valid(lane_w_valid[r]), .w_at(lane_w_at[r]), .w_word(lane_w_word[r]));
    end
  endgenerate

  // ---------------------------------------------------------------- words for STORE
  // A word of a lane, of one of a pair of neighbours of X or Y in the first step, then of all.
  localparam GROUP = ROWS < 2 ? ROWS : 2;
  localparam GROUPS = ROWS / GROUP;
  localparam G_BITS = GROUPS > 1 ? $clog2(GROUPS) : 1;
  logic [2:0] st_d;
  logic [R_BITS-1:0] lane_1, lane_2;
  logic of_x;
  logic [WORD-1:0] of_group [0:GROUPS-1];
  logic [WORD-1:0] chosen;
  generate
    for (r = 0; r < GROUPS; r = r + 1) begin : group
      logic [WORD-1:0] word;
      always_comb begin
        word = '0;
        for (int i = 0; i < GROUP; i++)
          if (R_BITS'(i) == (lane_1 & R_BITS'(GROUP - 1))) word = of_x ? x_word[r*GROUP+i] : y_word[r*GROUP+i];
      end
      always_ff @(posedge clk) of_group[r] <= word;
    end
  endgenerate
  always_ff @(posedge clk) begin
    st_d <= rst ? '0 : {st_d[1:0], st_valid && st_ready};
    of_x <= st_space == `FX_SPACE_X;
    {lane_2, lane_1} <= {lane_1, R_BITS'(st_lane)};
    chosen <= of_group[G_BITS'(lane_2 >> $clog2(GROUP))];
  end
  assign st_rvalid = st_d[2];
  assign st_rdata = chosen;

  // ---------------------------------------------------------------- errors
  // An address that a sequencer gave is of its youngest command: it waits until the older ones are done. What a lane or attention finds is of the oldest.
  // (Those of Gemm are found at a tile's last slot.)
  assign wrong = fd_err || out_err || gm_err || ve_err || ro_err;
  wire lanes_wrong = (lane_err && who != GEMM) || at_err;
  always_ff @(posedge clk) begin
    under_way <= rst ? 3'd0 : under_way + 3'(take) - 3'(all_done);
    early <= !rst && (early || wrong);
    stopped <= !rst && (stopped || wrong || lanes_wrong);
    err_valid <= !rst && (err_valid || lanes_wrong || (early && under_way == 3'd1));
    if (!early && !err_valid) err_code <= ve_err && !lanes_wrong ? ve_err_code : `FX_ERR_SCRATCH;
  end
endmodule
