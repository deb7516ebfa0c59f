// fx_vector: the sequencer of Vector. For each panel it has the feed read X word by word, tells the lanes' vector
// units (fx_vector_lane) what to do with each element, and injects what they make of it into the scale path.
//
// A panel is, in this order:
//   Combine       the gates of the panel's tokens are sent to their lanes, ROWS·TopK cycles
//   norms         its words are fed once for the sums, then come NORM_STEPS cycles for the root and the division
//   all           its words are fed, for Combine those of all slots in turn, word by word, and the results injected,
//                 the start of the panel's segment before them
// Results come a column a cycle, for Combine every TopK cycles, with SERIAL_MUL every STEP cycles. A command is taken
// when the one before is done. For the ports see fx_exec.
`default_nettype none
`include "fx_config.svh"
`include "fx_vector_codes.sv"

module fx_vector #(
  parameter ROWS = `FX_ROWS,
  parameter WORD_BYTES = `FX_WORD_BYTES,
  parameter NORMS = `FX_NORMS,
  parameter ROUTER = `FX_ROUTER,
  parameter SERIAL_MUL = `FX_SERIAL_MUL,
  parameter STEP = 17,                   // with SERIAL_MUL: cycles from one element to the next, at least 10
  parameter TOKENS = `FX_TOKENS,
  parameter X_BITS = 9,
  parameter Y_BITS = 9,
  parameter D_BITS = 9,
  parameter P_BITS = 8,
  parameter GATE_BITS = 1,               // of an address of the gate memory
  parameter ONE = 0,                     // cmd stays as it is until done: its fields need no registers
  parameter DRAIN = 20                   // cycles from a value's injection until the last lane's result can be read
) (
  input  wire          clk,
  input  wire          rst,
  input  wire          cmd_valid,
  output wire          cmd_ready,
  input  wire  [255:0] cmd,
  input  wire          out_ok,
  output logic         done,
  output wire          idle,
  output logic         err_valid,
  output logic [3:0]   err_code,         // Count is more than Words hold; words beyond the end, tokens behind the last

  output wire          fd_valid,
  input  wire          fd_ready,
  output wire  [X_BITS:0] fd_x,

  output wire          vy_re,
  output logic [Y_BITS:0] vy_at,
  output logic [$clog2(WORD_BYTES)-1:0] vy_byte,
  output wire          ij_valid,
  output wire          sg_valid,
  input  wire          sg_ready,
  output logic [D_BITS:0] sg_dst,
  output logic [Y_BITS:0] sg_res,
  output logic [P_BITS:0] sg_par,
  output wire          sg_one,

  output wire  [31:0]  lane,             // to lane 0's unit
  output wire  [12:0]  count,
  output wire          mean,
  output wire  [31:0]  eps,

  output wire  [GATE_BITS-1:0] gm_addr,  // gate memory: {token, rank}, the gate is there a cycle later
  input  wire  [15:0]  gm_gate
);
  localparam LW = $clog2(WORD_BYTES);
  localparam KB = `FX_TOP_K > 2 ? 2 : 1;  // bits of a rank
  localparam LINE = `FX_VECTOR_LATENCY + 1;

  // A field of 16 bits as an address of BITS bits and whether it lies beyond the end.
  `define FX_VECTOR_CLIP(field, BITS) {32'(field) >> BITS != 0, BITS'(field)}

  // ---- the command
  logic [2:0]  kind, top_k;
  logic [X_BITS-1:0] last;               // the last word of a row
  logic [7:0]  panels;                   // left after this one
  logic        norm, combine;
  logic [X_BITS:0] x_panel;
  logic [D_BITS:0] panel;
  logic [Y_BITS:0] res_panel;
  logic [15:0] token;
  wire  [2:0]  cmd_kind = cmd[`FX_VECTOR_KIND];
  wire  [15:0] cmd_words = cmd[`FX_VECTOR_WORDS];
  wire  [15:0] cmd_count = cmd[`FX_VECTOR_COUNT];
  wire         cmd_norm = NORMS && (cmd_kind == `FX_VECTOR_LAYERNORM || cmd_kind == `FX_VECTOR_RMSNORM);
  wire         cmd_combine = ROUTER && cmd_kind == `FX_VECTOR_COMBINE;
  wire         few = cmd_norm && 32'(cmd_count) > 32'(cmd_words) << LW;
  wire         overlong = 32'(cmd_words) > 1 << X_BITS;
  wire         late = cmd_combine && 32'(cmd_count) + 32'(cmd[`FX_VECTOR_PANELS]) * ROWS > TOKENS;

  // ---- the walk over panels, words and slots
  localparam IDLE = 3'd0, PANEL = 3'd1, GATES = 3'd2, STAT = 3'd3, ROOT = 3'd4, SEGMENT = 3'd5, FEED = 3'd6,
    LAST = 3'd7;
  logic [2:0]  state;
  logic [X_BITS:0] base, off, at;        // the panel; the way to the slot; their sum, a cycle late
  logic [X_BITS-1:0] word;
  logic [1:0]  rank;
  logic        settled;                  // at belongs to base and off
  logic [6:0]  step;
  logic [7:0]  drain;
  logic [5:0]  gate_lane;
  wire         run;                      // elements of a fed word are being sent
  wire         busy;                     // … or their results still to be injected
  logic        fresh;                    // no word of FEED is fed yet
  logic        pending;                  // the panel's segment is still to be begun
  wire         fire = fd_valid && fd_ready;
  wire         last_rank = !combine || 3'(rank) + 3'd1 == top_k;
  wire         last_word = word == last;
  wire         fed = fire && last_rank && last_word;

  // The segment's start needs a cycle between the results of two panels; sg_ready stays high until then.
  wire         begins = state == SEGMENT && !run && !pending && sg_ready;

  localparam [6:0] NORM_STEPS = 7'd15 + `FX_NORMALISE_STEPS + `FX_ROOT_STEPS + `FX_DIVIDE_STEPS;

  assign cmd_ready = state == IDLE && !rst;
  assign fd_valid = settled && (state == STAT || state == FEED);
  assign idle = state == IDLE;

  wire [X_BITS:0] at_next, off_next, base_next;
  wire [D_BITS:0] dst_next;
  wire [Y_BITS:0] res_next, vy_next;
  fx_address #(X_BITS) next_x (.at(at), .step({1'b0, word}), .next(fd_x));
  fx_address #(X_BITS) next_at (.at(base), .step(off), .next(at_next));
  fx_address #(X_BITS) next_off (.at(off), .step(x_panel), .next(off_next));
  fx_address #(X_BITS) next_base (.at(at), .step(x_panel), .next(base_next));
  fx_address #(D_BITS) next_dst (.at(sg_dst), .step(panel), .next(dst_next));
  fx_address #(Y_BITS) next_res (.at(sg_res), .step(res_panel), .next(res_next));
  fx_address #(Y_BITS) next_vy (.at(vy_at), .step((Y_BITS+1)'(1)), .next(vy_next));

  // The fields that hold for the whole descriptor.
  localparam F_BITS = 3 + 2 + 3 + X_BITS + (X_BITS+1) + (D_BITS+1) + (Y_BITS+1) + 1 + 13 + 1 + 32;
  wire [F_BITS-1:0] asked = {cmd_kind,
    cmd_norm,
    cmd_combine,
    cmd[`FX_VECTOR_TOPK],
    X_BITS'(cmd_words - 16'd1),
    `FX_VECTOR_CLIP(cmd[`FX_VECTOR_XPANEL], X_BITS),
    `FX_VECTOR_CLIP(cmd[`FX_VECTOR_PANEL], D_BITS),
    `FX_VECTOR_CLIP(cmd[`FX_VECTOR_RESPANEL], Y_BITS),
    cmd[`FX_VECTOR_ONEPARAM],
    cmd_count[12:0],
    cmd_kind == `FX_VECTOR_LAYERNORM,
    cmd[`FX_VECTOR_EPS]};
  logic [F_BITS-1:0] fields;
  generate
    if (ONE) assign fields = asked;
    else begin : keep
      always_ff @(posedge clk) if (cmd_valid && cmd_ready) fields <= asked;
    end
  endgenerate
  assign {kind, norm, combine, top_k, last, x_panel, panel, res_panel, sg_one, count, mean, eps} = fields;

  always_ff @(posedge clk) begin
    done <= 1'b0;
    err_valid <= 1'b0;
    at <= at_next;
    settled <= !fire && (state == STAT || state == FEED);
    if (fire) begin
      rank <= last_rank ? 2'd0 : rank + 2'd1;
      off <= last_rank ? '0 : off_next;
      if (last_rank) word <= last_word ? '0 : word + 1'b1;
    end
    case (state)
      IDLE: if (cmd_valid) begin
        panels <= cmd[`FX_VECTOR_PANELS] - 8'd1;
        base <= `FX_VECTOR_CLIP(cmd[`FX_VECTOR_X], X_BITS);
        sg_dst <= `FX_VECTOR_CLIP(cmd[`FX_VECTOR_BASE], D_BITS);
        sg_res <= `FX_VECTOR_CLIP(cmd[`FX_VECTOR_RES], Y_BITS);
        sg_par <= `FX_VECTOR_CLIP(cmd[`FX_VECTOR_PARAM], P_BITS);
        token <= cmd_count;
        err_valid <= few || overlong || late;
        err_code <= few ? `FX_ERR_COUNT : `FX_ERR_SCRATCH;
        word <= 0;
        rank <= 0;
        off <= 0;
        state <= PANEL;
      end
      PANEL: begin
        gate_lane <= 0;
        if (err_valid) state <= IDLE;
        else if (out_ok) begin
          if (norm) state <= STAT;
          else if (!combine) state <= SEGMENT;
          else if (!run) state <= GATES;
        end
      end
      GATES: begin
        rank <= last_rank ? 2'd0 : rank + 2'd1;
        if (last_rank) begin
          gate_lane <= gate_lane + 6'd1;
          token <= token + 16'd1;
          if (gate_lane == 6'(ROWS - 1)) state <= SEGMENT;
        end
      end
      STAT: if (fed) begin
        step <= 0;
        state <= ROOT;
      end
      ROOT: if (!run) begin
        step <= step + 7'd1;
        if (step == NORM_STEPS - 7'd1) state <= SEGMENT;
      end
      SEGMENT: if (begins) begin
        fresh <= 1'b1;
        pending <= 1'b1;
        state <= FEED;
      end
      FEED: if (fed) begin
        base <= base_next;
        panels <= panels - 8'd1;
        drain <= 0;
        state <= panels == 0 ? LAST : PANEL;
      end
      LAST: if (!busy) begin
        drain <= drain + 8'd1;
        if (drain == 8'(DRAIN - 1)) begin
          done <= 1'b1;
          state <= IDLE;
        end
      end
      default: ;
    endcase
    if (fire) fresh <= 1'b0;
    if (sg_valid) begin
      sg_dst <= dst_next;
      sg_res <= res_next;
      pending <= 1'b0;
    end
    if (rst) {state, pending, done} <= '0;
  end

  // ---- gates
  assign gm_addr = GATE_BITS'({token, rank[KB-1:0]});
  logic        gate_valid;
  logic [5:0]  gate_hops;
  logic [1:0]  gate_rank;
  always_ff @(posedge clk) begin
    gate_valid <= state == GATES;
    gate_hops <= gate_lane;
    gate_rank <= rank;
  end

  // ---- the elements of a word, one a cycle (SERIAL_MUL: one every STEP) from the cycle after it is fed
  logic [LW-1:0] element;
  logic [4:0]  phase;
  logic        running, run_last, run_stat;
  logic [1:0]  run_rank;
  logic [3:0]  run_op;
  logic [12:0] stat_left;                // elements of the row that the sums still lack
  logic        stat_first;
  wire         next = !SERIAL_MUL || phase == 5'(STEP - 1);
  wire         now = running && phase == 0;
  assign run = running;
  always_ff @(posedge clk) begin
    phase <= SERIAL_MUL && running && !next ? phase + 5'd1 : 5'd0;
    if (running && next) begin
      element <= element + 1'b1;
      if (&element) running <= 1'b0;
    end
    if (fire) begin
      running <= 1'b1;
      element <= 0;
      run_rank <= rank;
      run_last <= last_rank;
      run_stat <= NORMS != 0 && state == STAT;
      run_op <= state == STAT ? `FX_V_STAT : norm ? `FX_V_ELEMENT : combine ? `FX_V_COMBINE :
        kind == `FX_VECTOR_MUL ? `FX_V_MUL : `FX_V_AFFINE;
    end
    if (state == PANEL) begin
      stat_left <= count;
      stat_first <= 1'b1;
    end else if (now && run_stat) begin
      stat_first <= 1'b0;
      if (stat_left != 0) stat_left <= stat_left - 13'd1;
    end
    if (rst) {running, phase} <= 0;
  end

  // ---- what the lanes do: elements, or the steps between the passes of a norm
  wire [6:0] digit = step - 7'd10;
  logic [3:0] step_op;
  logic step_first;
  always_comb begin
    step_op = `FX_V_NONE;
    step_first = 1'b0;
    if (NORMS && state == ROOT && !running)
      if (step == 7'd3) step_op = `FX_V_VAR_N;
      else if (step == 7'd4) step_op = `FX_V_VAR_LOW;
      else if (step == 7'd5) step_op = `FX_V_VAR_HIGH;
      else if (step == 7'd9) step_op = `FX_V_LOAD;
      else if (step < 7'd10) step_op = `FX_V_NONE;
      else if (digit < `FX_NORMALISE_STEPS) step_op = `FX_V_NORMALISE;
      else if (digit < `FX_NORMALISE_STEPS + `FX_ROOT_STEPS) step_op = `FX_V_ROOT;
      else if (digit == `FX_NORMALISE_STEPS + `FX_ROOT_STEPS) step_op = `FX_V_INVERT;
      else if (digit <= `FX_NORMALISE_STEPS + `FX_ROOT_STEPS + `FX_DIVIDE_STEPS) step_op = `FX_V_DIVIDE;
      else if (step == NORM_STEPS - 7'd4) {step_op, step_first} = {`FX_V_SCALE, 1'b1};
      else if (step == NORM_STEPS - 7'd3) step_op = `FX_V_SCALE;
      else if (step == NORM_STEPS - 7'd1) step_op = `FX_V_HOLD;
  end

  // The word's first element is in row_byte three cycles after it was fed; there its code has to be.
  wire [3:0] op_now = now ? (run_stat && stat_left == 0 ? `FX_V_NONE : run_op) : step_op;
  wire first_now = now ? (run_stat ? stat_first : run_rank == 0) : step_first;
  logic [6:0]  op_next, op;
  always_ff @(posedge clk) begin
    op_next <= {op_now, first_now, run_rank};
    op <= op_next;
  end
  assign lane = {op, gate_valid, gate_hops, gate_rank, gm_gate};

  // ---- the element of Y, and the injection of the result
  assign vy_re = now && !run_stat && kind == `FX_VECTOR_MUL;
  always_ff @(posedge clk)
    if (begins) {vy_at, vy_byte} <= {sg_res, LW'(0)};
    else if (vy_re) begin
      vy_byte <= vy_byte + 1'b1;
      if (&vy_byte) vy_at <= vy_next;
    end

  logic [LINE-1:0] line, starts;
  always_ff @(posedge clk) begin
    line <= rst ? '0 : {line[LINE-2:0], now && !run_stat && run_last};
    starts <= rst ? '0 : {starts[LINE-2:0], fire && state == FEED && fresh};
  end
  assign ij_valid = line[LINE-1];
  assign sg_valid = starts[LINE-1];
  assign busy = running || |line || |starts;
  `undef FX_VECTOR_CLIP
endmodule
`default_nettype wire
