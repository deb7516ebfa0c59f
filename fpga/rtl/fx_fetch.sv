// Fetch: reads descriptors ahead, one burst each, checks them as they pass (fx_check) and puts them into the queues of
// their engines. Barrier and End wait here until all engines are idle, then for their semaphores. After End the
// machine is done.
`include "fx_config.svh"
`default_nettype none
module fx_fetch #(
  parameter int ADDR_BITS = `FX_ADDR_BITS,
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int NUMBER_BITS = 32,
  parameter int AHEAD = 4,  // descriptors read ahead, a power of two
  localparam int BEATS = 32 / WORD_BYTES,
  localparam int LG_BEATS = $clog2(BEATS)
) (
  input  wire                     clk,
  input  wire                     rst,
  input  wire                     start,
  input  wire  [31:0]             program_at,
  input  wire  [ADDR_BITS:0]      limit,      // the first address behind memory
  output logic                    finished,   // with End
  output logic                    passed,     // one more descriptor was fetched
  output logic [NUMBER_BITS-1:0]  number,     // of the descriptor that stands here
  output logic [NUMBER_BITS-1:0]  latest,     // of the last one that was fetched
  output logic                    err_valid,
  output logic [3:0]              err_code,
  // Memory.
  output logic                    ar_valid,
  input  wire                     ar_ready,
  output logic [ADDR_BITS-1:0]    ar_addr,
  output logic [7:0]              ar_len,
  input  wire                     r_valid,
  output logic                    r_ready,
  output logic                    r_last,
  input  wire  [8*WORD_BYTES-1:0] r_data,
  // Queues and semaphores.
  input  wire  [2:0]              room,
  output logic                    put,
  output logic [1:0]              put_engine,
  output logic [LG_BEATS-1:0]     put_beat,
  output logic [8*WORD_BYTES-1:0] put_data,
  output logic                    commit,
  input  wire                     idle,       // no engine has anything to do
  output logic                    want,
  output logic [7:0]              wait_mask,
  input  wire                     take,
  output logic                    post,
  output logic [7:0]              post_mask
);
  localparam int LG_AHEAD = $clog2(AHEAD);
  localparam logic [2:0] OFF = 3'd0, LOOK = 3'd1, ROOM = 3'd2, PASS = 3'd3, BAD = 3'd4, QUIET = 3'd5, TAKE = 3'd6,
                         DRAIN = 3'd7;
  logic [2:0] state;

  // Reading ahead: as long as there is room for a whole descriptor, memory has it, and End has not been seen.
  logic [ADDR_BITS:0] at;
  logic [LG_AHEAD:0] free, under_way;
  logic [LG_BEATS-1:0] arrived;
  logic fits, moved;  // fits is right unless `at` moved
  logic ended;
  wire asked = ar_valid && ar_ready;
  wire came = r_valid && r_last;
  assign ar_addr = at[ADDR_BITS-1:0];
  assign ar_len = 8'(BEATS - 1);
  assign r_ready = 1'b1;
  assign r_last = arrived == LG_BEATS'(BEATS - 1);
  logic valid, pop;
  logic [8*WORD_BYTES-1:0] head;
  wire [$clog2(AHEAD * BEATS):0] level;
  fx_fifo #(.WIDTH(8*WORD_BYTES), .DEPTH(AHEAD * BEATS)) ahead (
    .clk, .rst(rst || state == OFF), .push(r_valid), .tail(r_data), .valid, .head, .pop, .level);

  // Its operation says where a descriptor goes to. When there is room it goes there, a beat a cycle; two cycles behind
  // the last one it is known whether all was right.
  logic [LG_BEATS-1:0] beat;
  logic [3:0] op, code, bad;
  logic [19:4] sync;  // of a Barrier or End: wait and post masks
  logic open;                // beats may go
  logic passing, passed_by;  // one stands in data, and did a cycle ago
  logic [LG_BEATS-1:0] data_beat;
  logic [8*WORD_BYTES-1:0] data;
  wire own = op == `FX_OP_END || op == `FX_OP_BARRIER;
  wire [1:0] engine = op == `FX_OP_LOAD ? 2'd0 : op == `FX_OP_STORE || op == `FX_OP_STAMP ? 2'd2 : 2'd1;
  wire last = beat == LG_BEATS'(BEATS - 1);
  wire judged = state == PASS && !open && !passing && !passed_by;
  wire right = code == `FX_ERR_NONE;
  assign pop = open && valid;
  assign put_data = data;
  assign put_beat = data_beat;
  fx_check #(.WORD_BYTES(WORD_BYTES)) check (.clk, .take(passing), .data, .next(head), .next_beat(beat), .op,
                                          .code);
  logic outside;  // nothing comes any more
  assign err_valid = state == BAD;
  assign err_code = bad;

  wire obeyed = state == TAKE && take;
  assign want = state == TAKE;
  assign wait_mask = sync[`FX_LOAD_WAIT];
  assign post = obeyed;
  assign post_mask = sync[`FX_LOAD_POST];
  // What End posts may be too much, which the registers know four cycles later.
  logic [2:0] rest;
  assign finished = state == DRAIN && under_way == 0 && rest == 0;

  generate
    if (WORD_BYTES == 2) begin : g_narrow
      always_ff @(posedge clk) begin
        if (passing && data_beat == 0) sync[15:4] <= data[15:4];
        if (passing && data_beat == 1) sync[19:16] <= data[3:0];
      end
    end else begin : g_wide
      always_ff @(posedge clk) if (passing && data_beat == 0) sync <= data[19:4];
    end
  endgenerate

  always_ff @(posedge clk) begin
    free <= free - (LG_AHEAD+1)'(asked) + (LG_AHEAD+1)'(pop && last);
    under_way <= under_way + (LG_AHEAD+1)'(asked) - (LG_AHEAD+1)'(came);
    fits <= at[ADDR_BITS:5] < limit[ADDR_BITS:5];
    moved <= asked || state == OFF;
    outside <= level == 0 && under_way == 0 && !ar_valid && !moved && !fits;
    if (asked) begin
      at <= at + (ADDR_BITS+1)'(32);
      ar_valid <= 1'b0;
    end else if (!ar_valid) ar_valid <= state != OFF && !ended && !moved && fits && free != 0;
    if (r_valid) arrived <= came ? '0 : arrived + 1'b1;

    {passing, passed_by} <= {pop, passing};
    if (pop) begin
      data <= head;
      data_beat <= beat;
      beat <= last ? '0 : beat + 1'b1;
      open <= !last;
    end
    put <= pop && !own;
    put_engine <= engine;
    commit <= judged && right && !own;
    passed <= judged && right;
    if (passed) latest <= number;
    if (commit || obeyed) number <= number + 1'b1;
    if (state == TAKE) rest <= 3'd3;
    else if (state == DRAIN && rest != 0) rest <= rest - 1'b1;

    case (state)
      OFF: if (start) begin
        state <= program_at[4:0] != 0 || (program_at >> 1 >> (ADDR_BITS - 1)) != 0 ? BAD : LOOK;
        at <= {1'b0, program_at[ADDR_BITS-1:0]};
        bad <= `FX_ERR_MEMORY;
        number <= '0;
        latest <= '0;
        beat <= '0;
      end
      LOOK: begin
        op <= head[3:0];
        if (valid) begin
          state <= ROOM;
          ended <= head[3:0] == `FX_OP_END;
        end else if (outside) begin
          state <= BAD;
          bad <= `FX_ERR_MEMORY;
        end
      end
      ROOM: if (own || room[engine]) begin
        state <= PASS;
        open <= 1'b1;
      end
      PASS: if (judged) begin
        state <= !right ? BAD : own ? QUIET : LOOK;
        bad <= code;
      end
      QUIET: if (idle) state <= TAKE;
      TAKE: if (take) state <= ended ? DRAIN : LOOK;
      default: ;  // DRAIN: until finished; BAD: until reset
    endcase
    if (rst || finished) begin
      state <= OFF;
      free <= (LG_AHEAD+1)'(AHEAD);
      under_way <= '0;
      arrived <= '0;
      ar_valid <= 1'b0;
      ended <= 1'b0;
      open <= 1'b0;
      passing <= 1'b0;
      put <= 1'b0;
      commit <= 1'b0;
      passed <= 1'b0;
    end
  end
endmodule
