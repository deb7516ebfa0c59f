// fx_route: the sequencer of Route, and behind the lanes what makes gates and lists of their choices.
//
// Front: each panel of tokens is fed once; every lane keeps its token's best (fx_route_lane), a logit every second
// cycle. When the panel before has left the lanes' way out, what was chosen goes there, and the next panel may be fed.
// If all experts count in the sum (no Renormalise), the panel is fed again for each of its tokens, whose logits then
// come back along the lanes.
//
// Back: token by token, lane 0's first. Powers of two of what was chosen go through one fx_exp2 into a slot; a slot
// finds the reciprocal of its sum while other slots are at work; in the order of tokens the slots' gates are
// multiplied, and tokens appended to lists. A token takes TopK + 3 cycles, or about 30/SLOTS if that is more.
//
// Gates of a token lie in the gate memory at {token, rank}. For the ports of commands and of the feed see fx_exec.
`default_nettype none
`include "fx_config.svh"

module fx_route #(
  parameter ROWS = `FX_ROWS,
  parameter WORD_BYTES = `FX_WORD_BYTES,
  parameter EXPERTS = `FX_EXPERTS,
  parameter LIST_LEN = `FX_LIST_LEN,
  parameter TOKENS = `FX_TOKENS,
  parameter TOP_K = `FX_TOP_K,
  parameter X_BITS = 9,
  parameter SLOTS = 4,                   // a power of two
  parameter READERS = 2,
  parameter COUNTERS = 2,
  parameter GATE_BITS = $clog2(TOKENS) + (TOP_K > 2 ? 2 : 1)
) (
  input  wire                   clk,
  input  wire                   rst,
  input  wire                   cmd_valid,
  output wire                   cmd_ready,
  input  wire  [255:0]          cmd,
  output logic                  done,
  output wire                   idle,
  output logic                  err_valid,    // words beyond the end, tokens behind the last that has gates

  output wire                   fd_valid,
  input  wire                   fd_ready,
  output wire  [X_BITS:0]       fd_x,

  // To the unit of lane 0, and back from it: see fx_route_lane.
  output wire  [10:0]           lane,
  input  wire  [24*TOP_K+16:0]  back,

  input  wire  [GATE_BITS-1:0]  gm_addr,
  output wire  [15:0]           gm_gate,

  input  wire  [8*READERS-1:0]  ls_list,
  input  wire  [16*READERS-1:0] ls_index,
  output wire  [16*READERS-1:0] ls_token,
  output wire  [3*READERS-1:0]  ls_rank,
  output wire  [16*READERS-1:0] ls_count,
  input  wire  [8*COUNTERS-1:0] ct_list,
  output wire  [16*COUNTERS-1:0] ct_count,
  output wire  [31:0]           dropped
);
  localparam LW = $clog2(WORD_BYTES), LS = $clog2(SLOTS);
  localparam KB = TOP_K > 2 ? 2 : 1;

  // ---- Front: the panels.
  localparam IDLE = 3'd0, PASS = 3'd1, COMMIT = 3'd2, AGAIN = 3'd3, FINISH = 3'd4;
  logic [2:0]  state;
  logic        renormalise;
  logic [X_BITS-1:0] word, last;         // the last word of a row
  logic [15:0] left;                     // tokens not yet committed
  logic [8:0]  experts;
  logic [2:0]  top_k;
  logic [X_BITS:0] at, x_panel;          // the panel, the way to the next
  logic        settled;
  logic        pass_again;               // feeding, in AGAIN
  logic [6:0]  way;                      // tokens in the lanes' way out
  logic        way_settled;
  logic [5:0]  way_lane;                 // the lane whose token is at lane 0
  wire         want;                     // the back wants the logits of way_lane again
  wire         slots_empty, clearing;
  wire         fire = fd_valid && fd_ready;
  wire         last_word = word == last;
  wire [9:0]   cmd_words = 10'((32'(cmd[`FX_ROUTE_EXPERTS]) * 2 + WORD_BYTES - 1) >> LW);
  logic        running;
  wire         commits = state == COMMIT && !running && way == 0;
  wire [15:0]  panel_tokens = left > 16'(ROWS) ? 16'(ROWS) : left;
  wire         beyond = 32'(cmd[`FX_ROUTE_TOKEN]) + 32'(cmd[`FX_ROUTE_ROWS]) > TOKENS || 32'(cmd_words) > 1 << X_BITS;
  wire         accept = cmd_valid && cmd_ready;
  assign cmd_ready = state == IDLE && !rst;
  assign fd_valid = settled && (state == PASS || pass_again);
  assign idle = state == IDLE;
  // A field of 16 bits as an address of X and whether it lies beyond the end.
  `define FX_ROUTE_CLIP(field) {32'(field) >> X_BITS != 0, X_BITS'(field)}
  wire [X_BITS:0] at_next;
  fx_address #(X_BITS) next_x (.at(at), .step({1'b0, word}), .next(fd_x));
  fx_address #(X_BITS) next_at (.at(at), .step(x_panel), .next(at_next));
  always_ff @(posedge clk) begin
    done <= 1'b0;
    err_valid <= 1'b0;
    settled <= !fire && (state == PASS || pass_again);
    if (fire) word <= last_word ? '0 : word + 1'b1;
    case (state)
      IDLE: if (cmd_valid) begin
        renormalise <= cmd[`FX_ROUTE_RENORMALISE];
        last <= X_BITS'(cmd_words - 10'd1);
        experts <= cmd[`FX_ROUTE_EXPERTS];
        top_k <= cmd[`FX_ROUTE_TOPK];
        {at, x_panel} <= {`FX_ROUTE_CLIP(cmd[`FX_ROUTE_X]), `FX_ROUTE_CLIP(cmd[`FX_ROUTE_XPANEL])};
        left <= cmd[`FX_ROUTE_ROWS];
        word <= 0;
        err_valid <= beyond;
        state <= PASS;
      end
      PASS: if (err_valid) state <= IDLE;
        else if (fire && last_word) state <= COMMIT;
      COMMIT: if (commits) begin
        left <= left - panel_tokens;
        if (renormalise) begin
          at <= at_next;
          state <= left == panel_tokens ? FINISH : PASS;
        end else state <= AGAIN;
      end
      AGAIN: begin
        if (fire && last_word) pass_again <= 1'b0;
        else if (want && !running) pass_again <= 1'b1;
        if (way == 0 && way_settled) begin
          at <= at_next;
          state <= left == 0 ? FINISH : PASS;
        end
      end
      FINISH: if (way == 0 && way_settled && slots_empty && !clearing) begin
        done <= 1'b1;
        state <= IDLE;
      end
      default: ;
    endcase
    if (rst) {state, pass_again, done} <= 0;
  end

  `undef FX_ROUTE_CLIP

  // ---- The logits of a word, in lane 0 four and six and ... cycles after it was fed.
  logic [LW-1:0] element;
  logic [8:0]  expert;                   // of the row, that comes next
  logic        run_again;
  wire         low = running && !element[0];
  wire         real_logit = low && expert < experts;
  always_ff @(posedge clk) begin
    if (running) begin
      element <= element + 1'b1;
      if (&element) running <= 1'b0;
      if (low) expert <= expert + 9'd1;
    end
    if (fire) begin
      running <= 1'b1;
      element <= 0;
      run_again <= state == AGAIN;
      if (word == 0) expert <= 0;
    end
    if (rst) running <= 0;
  end
  logic valid1, first1, again1, commit1;
  logic lane_valid, lane_first, lane_commit, lane_shift, lane_again;
  logic [5:0] lane_hops;
  assign lane = {lane_valid, lane_first, lane_commit, lane_shift, lane_again, lane_hops};
  always_ff @(posedge clk) begin
    {lane_valid, valid1} <= {valid1, real_logit && !run_again};
    {lane_first, first1} <= {first1, expert == 0};
    {lane_again, again1} <= {again1, real_logit && run_again};
    {lane_commit, commit1} <= {commit1, commits};
    lane_hops <= way_lane;
  end

  // ---- Back, first part: the powers of two of a token's logits.
  localparam WAIT = 3'd0, ALL = 3'd1, EXP = 3'd2, SHIFT = 3'd3;
  wire         back_valid;
  wire [15:0]  back_logit;
  wire [24*TOP_K-1:0] chosen;            // of the token in lane 0
  assign {back_valid, back_logit, chosen} = back;
  logic [2:0]  back_state;
  logic [2:0]  settle;
  logic [8:0]  back_left;                // logits of ALL that are still to come
  logic [KB-1:0] rank;
  logic [15:0] token;
  logic [LS-1:0] slot;
  logic [SLOTS-1:0] used;
  logic        asked;
  wire [SLOTS-1:0] freed;
  wire         last_rank = 3'(rank) + 3'd1 == top_k;
  wire         take = back_state == WAIT && way_settled && way != 0 && !used[slot] && !clearing;
  assign way_settled = settle == 0;
  assign want = back_state == ALL && !asked;
  always_ff @(posedge clk) begin
    lane_shift <= 1'b0;
    if (settle != 0) settle <= settle - 3'd1;
    used <= rst ? '0 : (used & ~freed) | (take ? SLOTS'(1) << slot : '0);
    case (back_state)
      WAIT: if (take) begin
        rank <= 0;
        asked <= 1'b0;
        back_left <= experts;
        back_state <= renormalise ? EXP : ALL;
      end
      ALL: begin
        if (pass_again) asked <= 1'b1;
        if (back_valid) begin
          back_left <= back_left - 9'd1;
          if (back_left == 9'd1) back_state <= EXP;
        end
      end
      EXP: begin
        rank <= rank + 1'b1;
        if (last_rank) back_state <= SHIFT;
      end
      SHIFT: begin
        lane_shift <= 1'b1;
        way <= way - 7'd1;
        way_lane <= way_lane + 6'd1;
        settle <= 3'd1;
        token <= token + 16'd1;
        slot <= slot + 1'b1;
        back_state <= WAIT;
      end
      default: ;
    endcase
    if (commits) begin
      way <= panel_tokens[6:0];
      way_lane <= 0;
      settle <= 3'd7;
    end
    if (accept) token <= cmd[`FX_ROUTE_TOKEN];
    if (rst) {back_state, way, settle, slot} <= 0;
  end

  // x goes in at cycle 0; its power comes out at cycle 7.
  wire [16*TOP_K-1:0] logits;
  wire [8*TOP_K-1:0] experts_chosen;
  genvar i;
  generate for (i = 0; i < TOP_K; i = i + 1) begin : split
    assign logits[16*i +: 16] = chosen[24*i +: 16];
    assign experts_chosen[8*i +: 8] = chosen[24*i+16 +: 8];
  end endgenerate
  logic [16:0] below;                    // max - x
  logic [15:0] x;
  always_comb begin
    x = back_logit;
    for (int k = 0; k < TOP_K; k++)
      if (back_state == EXP && rank == KB'(k)) x = logits[16*k +: 16];
  end
  wire [16:0] p;
  always_ff @(posedge clk) below <= {logits[15], logits[15:0]} - {x[15], x};
  fx_exp2 #(.T_BITS(17)) exp2 (.clk(clk), .t(below), .zero(1'b0), .p(p));

  // With it go: it counts in the sum, begins it, was chosen with a rank, is the last one of its token, the slot.
  localparam TB = 4 + KB + LS;
  logic [7*TB-1:0] tags;
  wire counts = back_state == ALL ? back_valid : back_state == EXP && renormalise;
  wire begins = back_state == ALL ? back_left == experts : renormalise && rank == 0;
  wire is_chosen = back_state == EXP;
  always_ff @(posedge clk) begin
    tags <= {tags[6*TB-1:0], counts, begins, is_chosen, is_chosen && last_rank, rank, slot};
    if (rst) tags <= 0;
  end
  wire p_counts, p_begins, p_chosen, p_last;
  wire [KB-1:0] p_rank;
  wire [LS-1:0] p_slot;
  assign {p_counts, p_begins, p_chosen, p_last, p_rank, p_slot} = tags[6*TB +: TB];
  logic [31:0] sum;
  logic        sum_done;
  logic [LS-1:0] sum_slot;
  always_ff @(posedge clk) begin
    if (p_counts) sum <= (p_begins ? 32'd0 : sum) + 32'(p);
    sum_done <= p_last;
    sum_slot <= p_slot;
  end

  // ---- The slots: a token's powers and experts, and the reciprocal of its sum.
  logic [LS-1:0] out;                    // the slot whose gates are next
  wire [SLOTS-1:0] ready;
  wire [17*TOP_K*SLOTS-1:0] powers;
  wire [8*TOP_K*SLOTS-1:0] ids;
  wire [16*SLOTS-1:0] tokens, rs;
  wire [5*SLOTS-1:0] zs;
  generate for (i = 0; i < SLOTS; i = i + 1) begin : each
    logic [17*TOP_K-1:0] power;
    logic [8*TOP_K-1:0] id;
    logic [15:0] number;
    logic full;
    wire finished;
    fx_reciprocal reciprocal (.clk(clk), .rst(rst), .start(sum_done && sum_slot == LS'(i)), .sum(sum),
      .bit_valid(), .done(finished), .r(rs[16*i +: 16]), .z(zs[5*i +: 5]));
    always_ff @(posedge clk) begin
      for (int k = 0; k < TOP_K; k++)
        if (p_chosen && p_slot == LS'(i) && p_rank == KB'(k)) power[17*k +: 17] <= p;
      if (back_state == EXP && slot == LS'(i)) {id, number} <= {experts_chosen, token};
      if (rst || freed[i]) full <= 1'b0;
      else if (finished) full <= 1'b1;
    end
    assign ready[i] = full;
    assign powers[17*TOP_K*i +: 17*TOP_K] = power;
    assign ids[8*TOP_K*i +: 8*TOP_K] = id;
    assign tokens[16*i +: 16] = number;
  end endgenerate

  // ---- Back, second part: gates and lists, a rank a cycle.
  logic [KB-1:0] out_rank;
  wire         out_last = 3'(out_rank) + 3'd1 == top_k;
  wire         out_now = |(ready & (SLOTS'(1) << out));
  assign freed = out_now && out_last ? SLOTS'(1) << out : 0;
  // Of the slot and of the rank.
  logic [16:0] out_power;
  logic [7:0]  out_id;
  logic [36:0] out_rest;                 // the slot's r, z and token
  always_comb begin
    {out_power, out_id, out_rest} = '0;
    for (int j = 0; j < SLOTS; j++)
      if (out == LS'(j)) begin
        out_rest = {rs[16*j +: 16], zs[5*j +: 5], tokens[16*j +: 16]};
        for (int k = 0; k < TOP_K; k++)
          if (out_rank == KB'(k)) {out_power, out_id} = {powers[17*(TOP_K*j+k) +: 17], ids[8*(TOP_K*j+k) +: 8]};
      end
  end
  logic [3:0]  v;                        // stages 1 to 4
  logic [16:0] power1;
  logic [15:0] r1;
  logic [3:0]  by1, by2;                 // 15 - z: the sum holds a power of nearly 1, so that z is at most 15
  logic [1:0]  by3;
  logic [32:0] product2;
  logic [16:0] gate3;
  logic [7:0]  id1, id2, id3;
  logic [15:0] token1, token2, token3, token4;
  logic [KB-1:0] rank1, rank2, rank3, rank4;
  logic [15:0] gate4;
  wire [16:0]  shifted = gate3 >> by3;
  wire         room;
  always_ff @(posedge clk) begin
    if (rst) {out, out_rank} <= 0;
    else if (out_now) begin
      out_rank <= out_last ? '0 : out_rank + 1'b1;
      if (out_last) out <= out + 1'b1;
    end
    v <= rst ? 4'd0 : {v[2:0], out_now};
    power1 <= out_power;
    r1 <= out_rest[36:21];
    by1 <= ~out_rest[19:16];
    product2 <= power1 * r1;
    by2 <= by1;
    gate3 <= product2[32:16] >> {by2[3:2], 2'b00};
    by3 <= by2[1:0];
    gate4 <= shifted[16] ? 16'hffff : shifted[15:0];
    {id1, token1, rank1} <= {out_id, out_rest[15:0], out_rank};
    {id2, token2, rank2} <= {id1, token1, rank1};
    {id3, token3, rank3} <= {id2, token2, rank2};
    {token4, rank4} <= {token3, rank3};
  end
  assign slots_empty = used == 0 && v == 0;

  fx_lists #(.EXPERTS(EXPERTS), .LIST_LEN(LIST_LEN), .READERS(READERS), .COUNTERS(COUNTERS)) lists (.clk(clk), .rst(rst),
    .clear(accept && cmd[`FX_ROUTE_FIRST]), .clearing(clearing), .append(v[2]), .append_list(id3),
    .append_token(token3), .append_rank(2'(rank3)), .append_room(room), .dropped(dropped), .ls_list(ls_list),
    .ls_index(ls_index), .ls_token(ls_token), .ls_rank(ls_rank), .ls_count(ls_count),
    .ct_list(ct_list), .ct_count(ct_count));

  fx_ram #(.WIDTH(16), .DEPTH(1 << GATE_BITS)) gates (.clk(clk), .we(v[3]), .waddr(GATE_BITS'({token4, rank4})),
    .wdata(room ? gate4 : 16'd0), .raddr(gm_addr), .rdata(gm_gate));
endmodule
`default_nettype wire
