// What fx_check has to find in any descriptor that passes beat by beat, written field by field and at once.
`include "fx_config.svh"
`default_nettype none
module check (
  input wire clk
);
  localparam int WORD_BYTES = `FX_WORD_BYTES, BEATS = 32 / WORD_BYTES;
  (* anyconst *) wire [255:0] d;
  logic [$clog2(BEATS)-1:0] beat = '0;
  always_ff @(posedge clk) beat <= beat + 1'b1;
  logic [8*WORD_BYTES-1:0] data, next;
  always_comb begin
    next = '0;
    for (int i = 0; i < BEATS; i++) if (beat + 1'b1 == ($clog2(BEATS))'(i)) next = d[8*WORD_BYTES*i +: 8*WORD_BYTES];
  end
  always_ff @(posedge clk) data <= next;
  wire [3:0] code;
  fx_check dut (.clk, .take(1'b1), .data, .next, .next_beat(beat + 1'b1), .op(d[3:0]), .code);

  wire load = d[3:0] == `FX_OP_LOAD, store = d[3:0] == `FX_OP_STORE, stamp = d[3:0] == `FX_OP_STAMP,
       gemm = d[3:0] == `FX_OP_GEMM, attention = d[3:0] == `FX_OP_ATTENTION, vector = d[3:0] == `FX_OP_VECTOR,
       route = d[3:0] == `FX_OP_ROUTE;
  wire [7:0] dim = d[`FX_ATTENTION_DIM];
  localparam logic [31:0] PART = WORD_BYTES - 1, TILE = `FX_COLS / WORD_BYTES - 1;  // what whole words and tiles lack
  wire combine = d[`FX_VECTOR_KIND] == `FX_VECTOR_COMBINE;
  wire norm = d[`FX_VECTOR_KIND] == `FX_VECTOR_LAYERNORM || d[`FX_VECTOR_KIND] == `FX_VECTOR_RMSNORM;
  wire listed = (load && (d[`FX_LOAD_GATHER] || d[`FX_LOAD_SKIP])) || (store && d[`FX_STORE_SCATTER]) ||
                (gemm && d[`FX_GEMM_LISTED]);
  wire [7:0] list = gemm ? d[`FX_GEMM_LIST] : d[`FX_LOAD_LIST];
  wire table_load = load && d[`FX_LOAD_SPACE] == `FX_SPACE_TABLE;
  wire one_row = table_load || (load && d[`FX_LOAD_SPACE] == `FX_SPACE_PARAMS);

  wire bad_op = d[3:0] > `FX_OP_ROUTE || (attention && !`FX_ATTENTION) || (route && !`FX_ROUTER) ||
    (listed && !`FX_ROUTER) ||
    (vector && (d[`FX_VECTOR_KIND] > `FX_VECTOR_COMBINE || (norm && !`FX_NORMS) || (combine && !`FX_ROUTER))) ||
    (vector && d[`FX_VECTOR_RESIDUAL] && (combine || d[`FX_VECTOR_KIND] == `FX_VECTOR_MUL)) ||
    ((vector || (gemm && !d[`FX_GEMM_HOLD])) && d[`FX_GEMM_WIDE] && d[`FX_GEMM_TABLE] != 0);
  wire bad_memory = ((load || store || stamp) && (d[`FX_LOAD_ADDR] & PART) != 0) ||
    ((load || store) && (d[`FX_LOAD_STRIDE] & PART) != 0);
  wire bad_scratch = listed && 32'(list) >= `FX_EXPERTS;
  wire bad_count =
    ((load || store) && (d[`FX_LOAD_ROWS] == 0 || d[`FX_LOAD_WORDS] == 0)) ||
    (one_row && d[`FX_LOAD_ROWS] != 1) || (table_load && 32'(d[`FX_LOAD_WORDS]) != 256 / WORD_BYTES) ||
    (store && listed && (d[`FX_STORE_TOPK] == 0 || 32'(d[`FX_STORE_TOPK]) > `FX_TOP_K)) ||
    (gemm && (d[`FX_GEMM_WORDS] == 0 || d[`FX_GEMM_PANELS] == 0 || d[`FX_GEMM_TILES] == 0)) ||
    (gemm && (d[`FX_GEMM_MORE] || d[`FX_GEMM_HOLD]) && (d[`FX_GEMM_PANELS] != 1 || d[`FX_GEMM_TILES] != 1)) ||
    (attention && (dim == 0 || 32'(dim) > `FX_HEAD_DIM / WORD_BYTES || (32'(dim) & TILE) != 0 ||
      d[`FX_ATTENTION_QPANELS] == 0 || 32'(d[`FX_ATTENTION_QPANELS]) > `FX_Q_PANELS ||
       d[`FX_ATTENTION_KEYS] == 0 || d[`FX_ATTENTION_SCOREMUL] > 16'd32767)) ||
    (vector && (d[`FX_VECTOR_WORDS] == 0 || d[`FX_VECTOR_PANELS] == 0)) ||
    (vector && combine && (d[`FX_VECTOR_TOPK] == 0 || 32'(d[`FX_VECTOR_TOPK]) > `FX_TOP_K)) ||
    (vector && norm && (d[`FX_VECTOR_COUNT] == 0 || 32'(d[`FX_VECTOR_COUNT]) > 4096)) ||
    (route && (d[`FX_ROUTE_ROWS] == 0 || d[`FX_ROUTE_EXPERTS] == 0 || 32'(d[`FX_ROUTE_EXPERTS]) > `FX_EXPERTS ||
      d[`FX_ROUTE_TOPK] == 0 || 32'(d[`FX_ROUTE_TOPK]) > `FX_TOP_K ||
      32'(d[`FX_ROUTE_TOPK]) > 32'(d[`FX_ROUTE_EXPERTS])));

  // The last beat's error stands there in the second cycle after it, from the second pass on without what was before the
  // first.
  logic [$clog2(BEATS)+1:0] passed = '0;
  always_ff @(posedge clk) if (!passed[$clog2(BEATS)+1]) passed <= passed + 1'b1;
  always_comb begin
    if (passed[$clog2(BEATS)+1] && beat == ($clog2(BEATS))'(1)) begin
      assert ((code != `FX_ERR_NONE) == (bad_op || bad_memory || bad_scratch || bad_count));
      if (code == `FX_ERR_OP) assert (bad_op);
      if (code == `FX_ERR_MEMORY) assert (bad_memory);
      if (code == `FX_ERR_SCRATCH) assert (bad_scratch);
      if (code == `FX_ERR_COUNT) assert (bad_count);
      assert (code <= `FX_ERR_MEMORY);
    end
  end
endmodule
