// What fetch checks of a descriptor as it comes, beat by beat: that the overlay has the operation, that counts are in
// their range, that memory is addressed by whole words. Every field that is checked lies within one half of a word.
// `code` is right in the cycle in which `last` is, and holds the first error of the descriptor's beats so far.
`include "fx_config.svh"
`default_nettype none
module fx_check #(
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int COLS = `FX_COLS,
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
  input  wire                    take,  // this beat is one of a descriptor
  input  wire  [LG_BEATS-1:0]    beat,  // its number
  input  wire  [8*WORD_BYTES-1:0] data,
  output logic [3:0]             op,    // the descriptor's operation, from its first beat on
  output logic [3:0]             code   // this beat and those before it
);
  localparam int HALVES = WORD_BYTES / 2;

  logic [3:0]  op_q, code_q;
  logic [15:0] flags_q, flags;  // the high half of word 0
  logic [2:0]  kind_q;          // of a Vector

  // Bits of the flags, and of half 7.
  localparam int LISTED = 4, RESIDUAL = 4, SKIP = 5, WIDE = 6, SPACE = 8, MORE = 11, HOLD = 12, LIST_GEMM = 13;

  function automatic logic [3:0] count_if(input logic wrong);
    count_if = wrong ? `FX_ERR_COUNT : `FX_ERR_NONE;
  endfunction

  function automatic logic [3:0] memory_if(input logic wrong);
    memory_if = wrong ? `FX_ERR_MEMORY : `FX_ERR_NONE;
  endfunction

  // The error of half h of a descriptor, 0: none.
  function automatic logic [3:0] check(input logic [3:0] o, input logic [15:0] f, input logic [2:0] kind,
                                       input logic [3:0] h, input logic [15:0] v);
    logic whole, one_row, table_row, listed, no_rank;
    whole = (v & 16'(WORD_BYTES - 1)) == 0;
    one_row = f[SPACE +: 3] == `FX_SPACE_PARAMS || f[SPACE +: 3] == `FX_SPACE_TABLE;
    table_row = f[SPACE +: 3] == `FX_SPACE_TABLE;
    case (o)
      `FX_OP_LOAD: listed = f[LISTED] || f[SKIP];
      `FX_OP_STORE: listed = f[LISTED];
      `FX_OP_GEMM: listed = f[LIST_GEMM];
      default: listed = 1'b0;
    endcase
    no_rank = 1'b0;
    check = `FX_ERR_NONE;
    case (h)
      4'd0:
        if (o > `FX_OP_ROUTE || (o == `FX_OP_ATTENTION && ATTENTION == 0) || (o == `FX_OP_ROUTE && ROUTER == 0))
          check = `FX_ERR_OP;
      4'd1:
        if (listed && ROUTER == 0) check = `FX_ERR_OP;
      4'd2:
        if (o == `FX_OP_LOAD || o == `FX_OP_STORE || o == `FX_OP_STAMP) check = memory_if(!whole);
      4'd4:
        if (o == `FX_OP_LOAD || o == `FX_OP_STORE) check = memory_if(!whole);
      4'd6:
        case (o)
          `FX_OP_LOAD: check = count_if(v == 0 || (one_row && v != 1));
          `FX_OP_ATTENTION: check = count_if(v[7:0] == 0 || 32'(v[7:0]) > HEAD_DIM / WORD_BYTES ||
            (32'(v[7:0]) & (COLS / WORD_BYTES - 1)) != 0 || v[15:8] == 0 || 32'(v[15:8]) > Q_PANELS);
          `FX_OP_STORE, `FX_OP_GEMM, `FX_OP_VECTOR, `FX_OP_ROUTE: check = count_if(v == 0);
          default: ;
        endcase
      4'd7:
        case (o)
          `FX_OP_LOAD: check = count_if(v == 0 || (table_row && v != 16'(256 / WORD_BYTES)));
          `FX_OP_STORE, `FX_OP_ATTENTION: check = count_if(v == 0);
          `FX_OP_GEMM:
            check = count_if(v[7:0] == 0 || v[15:8] == 0 || ((f[MORE] || f[HOLD]) && v != 16'h0101));
          `FX_OP_VECTOR: begin
            no_rank = v[13:11] == 0 || 32'(v[13:11]) > TOP_K;
            if (v[10:8] > `FX_VECTOR_COMBINE ||
                (f[RESIDUAL] && (v[10:8] == `FX_VECTOR_MUL || v[10:8] == `FX_VECTOR_COMBINE)) ||
                (v[10:8] == `FX_VECTOR_COMBINE && ROUTER == 0) || (NORMS == 0 &&
                (v[10:8] == `FX_VECTOR_LAYERNORM || v[10:8] == `FX_VECTOR_RMSNORM))) check = `FX_ERR_OP;
            else check = count_if(v[7:0] == 0 || (v[10:8] == `FX_VECTOR_COMBINE && no_rank));
          end
          `FX_OP_ROUTE:
            check = count_if(v[8:0] == 0 || 32'(v[8:0]) > EXPERTS || v[11:9] == 0 || 32'(v[11:9]) > TOP_K ||
                             9'(v[11:9]) > v[8:0]);
          default: ;
        endcase
      4'd10:
        if ((o == `FX_OP_LOAD || o == `FX_OP_STORE) && listed) begin
          no_rank = v[10:8] == 0 || 32'(v[10:8]) > TOP_K;
          if (32'(v[7:0]) >= EXPERTS) check = `FX_ERR_SCRATCH;
          else check = count_if(o == `FX_OP_STORE && no_rank);
        end
      4'd12:
        if (o == `FX_OP_ATTENTION) check = count_if(v[15]);
      4'd14:
        if ((o == `FX_OP_VECTOR || (o == `FX_OP_GEMM && !f[HOLD])) && f[WIDE] && v[10:8] != 0) check = `FX_ERR_OP;
      4'd15:
        if (o == `FX_OP_GEMM && listed && 32'(v[7:0]) >= EXPERTS) check = `FX_ERR_SCRATCH;
        else if (o == `FX_OP_VECTOR && (kind == `FX_VECTOR_LAYERNORM || kind == `FX_VECTOR_RMSNORM))
          check = count_if(v == 0 || v > 16'd4096);
      default: ;
    endcase
  endfunction

  wire first = beat == 0;
  assign op = first ? data[3:0] : op_q;
  generate
    if (WORD_BYTES == 2) begin : g_narrow
      assign flags = beat == LG_BEATS'(1) ? data : flags_q;
    end else begin : g_wide
      assign flags = first ? data[31:16] : flags_q;
    end
  endgenerate

  always_comb begin
    code = first ? `FX_ERR_NONE : code_q;
    for (int i = 0; i < HALVES; i++)
      if (code == `FX_ERR_NONE) code = check(op, flags, kind_q, 4'(beat) << $clog2(HALVES) | 4'(i), data[16*i +: 16]);
  end

  // Half 7 is the last of its beat whatever the width.
  always_ff @(posedge clk) if (take) begin
    op_q <= op;
    flags_q <= flags;
    code_q <= code;
    if (beat == LG_BEATS'(8 / HALVES - 1)) kind_q <= data[8*WORD_BYTES-6 -: 3];
  end
endmodule
