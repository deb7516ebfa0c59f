// What fetch checks of a descriptor as it comes, beat by beat: that the overlay has the operation, that counts are in
// their range, that memory is addressed by whole words. Every field that is checked lies within one half of a word.
// `code` is the first error of the beats that were taken, from the second cycle after the last of them on.
`include "fx_config.svh"
`default_nettype none
module fx_check #(
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int ROWS = `FX_ROWS,
  parameter int COLS = `FX_COLS,
  parameter int PATCHES = `FX_PATCHES,
  parameter int ATTENTION = `FX_ATTENTION,
  parameter int HEAD_DIM = `FX_HEAD_DIM,
  parameter int Q_PANELS = `FX_Q_PANELS,
  parameter int NORMS = `FX_NORMS,
  parameter int ROUTER = `FX_ROUTER,
  parameter int EXPERTS = `FX_EXPERTS,
  parameter int TOP_K = `FX_TOP_K,
  localparam int BEATS = 32 / WORD_BYTES,
  localparam int LG_BEATS = $clog2(BEATS)
) (
  input  wire                    clk,
  input  wire                    take,       // this beat is one of a descriptor
  input  wire  [8*WORD_BYTES-1:0] data,
  input  wire  [8*WORD_BYTES-1:0] next,      // data, a cycle before
  input  wire  [LG_BEATS-1:0]    next_beat,  // its number
  input  wire  [3:0]             op,         // the descriptor's operation, from a cycle before its first beat on
  output logic [3:0]             code        // its first error, 0: none
);
  localparam int HALVES = WORD_BYTES / 2;

  logic [15:0] flags_q, flags;  // the high half of word 0
  logic [2:0]  kind_q;          // of a Vector

  // Bits of the flags, and of half 7.
  localparam int LISTED = 4, RESIDUAL = 4, SKIP = 5, WIDE = 6, SPACE = 8, MORE = 11, HOLD = 12, LIST_GEMM = 13;

  // Until they are told, errors are one of four bits, which takes less time than numbers. Of two the lower one counts.
  localparam logic [3:0] NONE = 4'b0000, OP = 4'b0001, SCRATCH = 4'b0010, COUNT = 4'b0100, MEMORY = 4'b1000;

  localparam logic [15:0] KNOWN = 16'((2 << `FX_OP_ROUTE) - 1);

  function automatic logic [3:0] op_if(input logic wrong);
    op_if = wrong ? OP : NONE;
  endfunction
  function automatic logic [3:0] count_if(input logic wrong);
    count_if = wrong ? COUNT : NONE;
  endfunction
  function automatic logic [3:0] scratch_if(input logic wrong);
    scratch_if = wrong ? SCRATCH : NONE;
  endfunction
  function automatic logic [3:0] memory_if(input logic wrong);
    memory_if = wrong ? MEMORY : NONE;
  endfunction

  // The error of half h of a descriptor (one of 16 bits, like the operation), which is v; z says which of its bytes are
  // zero. 0: none.
  function automatic logic [3:0] check(input logic [15:0] is, input logic [15:0] f, input logic [2:0] kind,
                                       input logic [15:0] h, input logic [15:0] v, input logic [1:0] z);
    logic move, zero, whole, one_row, table_row, listed, no_rank, no_list, norm;
    move = is[`FX_OP_LOAD] || is[`FX_OP_STORE];
    zero = &z;
    whole = (v & 16'(WORD_BYTES - 1)) == 0;
    one_row = f[SPACE +: 3] == `FX_SPACE_PARAMS || f[SPACE +: 3] == `FX_SPACE_TABLE;
    table_row = f[SPACE +: 3] == `FX_SPACE_TABLE;
    listed = (is[`FX_OP_LOAD] && (f[LISTED] || f[SKIP])) || (is[`FX_OP_STORE] && f[LISTED]) ||
             (is[`FX_OP_GEMM] && f[LIST_GEMM]);
    no_list = 32'(v[7:0]) >= EXPERTS;
    check = NONE;
    if (h[0])
      check |= op_if((is & ~KNOWN) != 0 || (is[`FX_OP_ATTENTION] && ATTENTION == 0) || (is[`FX_OP_ROUTE] && ROUTER == 0));
    if (h[1]) check |= op_if(listed && ROUTER == 0);
    if (h[2]) check |= memory_if((move || is[`FX_OP_STAMP]) && !whole);
    if (h[4]) check |= memory_if(move && !whole);
    if (h[6]) begin
      if (is[`FX_OP_LOAD]) check |= count_if(zero || (one_row && v != 1));
      if (is[`FX_OP_ATTENTION])
        check |= count_if(z[0] || 32'(v[7:0]) > HEAD_DIM / WORD_BYTES ||
                          (32'(v[7:0]) & (COLS / WORD_BYTES - 1)) != 0 || z[1] || 32'(v[15:8]) > Q_PANELS);
      if (is[`FX_OP_STORE] || is[`FX_OP_GEMM] || is[`FX_OP_VECTOR] || is[`FX_OP_ROUTE]) check |= count_if(zero);
    end
    if (h[7]) begin
      if (is[`FX_OP_LOAD]) check |= count_if(zero || (table_row && v != 16'(256 / WORD_BYTES)));
      if (is[`FX_OP_STORE] || is[`FX_OP_ATTENTION]) check |= count_if(zero);
      if (is[`FX_OP_GEMM]) check |= count_if(z[0] || z[1] || ((f[MORE] || f[HOLD]) && v != 16'h0101));
      if (is[`FX_OP_VECTOR]) begin
        no_rank = v[13:11] == 0 || 32'(v[13:11]) > TOP_K;
        norm = v[10:8] == `FX_VECTOR_LAYERNORM || v[10:8] == `FX_VECTOR_RMSNORM;
        check |= op_if(v[10:8] > `FX_VECTOR_COMBINE || (v[10:8] == `FX_VECTOR_COMBINE && ROUTER == 0) || (norm && NORMS == 0) ||
                       (f[RESIDUAL] && (v[10:8] == `FX_VECTOR_MUL || v[10:8] == `FX_VECTOR_COMBINE)));
        check |= count_if(z[0] || (v[10:8] == `FX_VECTOR_COMBINE && no_rank));
      end
      if (is[`FX_OP_ROUTE])
        check |= count_if(v[8:0] == 0 || 32'(v[8:0]) > EXPERTS || v[11:9] == 0 || 32'(v[11:9]) > TOP_K ||
                          9'(v[11:9]) > v[8:0]);
    end
    if (h[10] && move && listed) begin
      no_rank = v[10:8] == 0 || 32'(v[10:8]) > TOP_K;
      check |= scratch_if(no_list) | count_if(is[`FX_OP_STORE] && no_rank);
    end
    if (PATCHES != 0 && is[`FX_OP_LOAD]) begin
      if (h[10])
        check |= op_if(v[13:8] != 0 && (listed || one_row)) |
                 scratch_if(32'(v[13:8]) >= (f[SPACE +: 3] == `FX_SPACE_W ? COLS : ROWS));
      if (h[11]) check |= op_if((v[7:0] > 8'd1 || v[15:8] > 8'd1) && (listed || one_row));
      if (h[14]) check |= memory_if(!whole);
    end
    if (h[12]) check |= count_if(is[`FX_OP_ATTENTION] && v[15]);
    if (h[14])
      check |= op_if((is[`FX_OP_VECTOR] || (is[`FX_OP_GEMM] && !f[HOLD])) && f[WIDE] && v[10:8] != 0);
    if (h[15]) begin
      check |= scratch_if(is[`FX_OP_GEMM] && listed && no_list);
      norm = kind == `FX_VECTOR_LAYERNORM || kind == `FX_VECTOR_RMSNORM;
      check |= count_if(is[`FX_OP_VECTOR] && norm && (zero || v > 16'd4096));
    end
  endfunction

  // The operation and the beat's number, each as one bit of many.
  logic [15:0] is;
  logic [BEATS-1:0] at;
  wire first = at[0];
  generate
    if (WORD_BYTES == 2) begin : g_narrow
      assign flags = at[1] ? data : flags_q;
    end else begin : g_wide
      assign flags = first ? data[31:16] : flags_q;
    end
  endgenerate

  logic [3:0] error, found;  // of this beat; of the one before
  logic [2*HALVES-1:0] zero;  // bytes of data
  logic begins, taken;
  logic [15:0] halves [0:HALVES-1];  // which half i of the beat is
  always_comb begin
    for (int i = 0; i < HALVES; i++)
      for (int h = 0; h < 16; h++) halves[i][h] = h % HALVES == i && at[h / HALVES];
    error = NONE;
    for (int i = 0; i < HALVES; i++)
      if (error == NONE)
        error = check(is, flags, kind_q, halves[i], data[16*i +: 16], zero[2*i +: 2]);
  end

  // Half 7 is the last of its beat whatever the width.
  always_ff @(posedge clk) begin
    for (int i = 0; i < 2 * HALVES; i++) zero[i] <= next[8*i +: 8] == 0;
    is <= 16'd1 << op;
    at <= BEATS'(1) << next_beat;
    taken <= take;
    begins <= first;
    found <= error;
    if (taken && (begins || code == `FX_ERR_NONE))
      code <= found[0] ? `FX_ERR_OP : found[1] ? `FX_ERR_SCRATCH : found[2] ? `FX_ERR_COUNT : found[3] ? `FX_ERR_MEMORY :
              `FX_ERR_NONE;
    if (take) flags_q <= flags;
    if (take && at[8/HALVES-1]) kind_q <= data[8*WORD_BYTES-6 -: 3];
  end
endmodule
