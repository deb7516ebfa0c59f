// A stand-in for EXEC in tests of everything around it: scratchpads of X and Y alone, and commands that take Words cycles
// and are done some cycles later. Param 65535 is an error. List l has l entries, entry i is token 3·i + l of rank i%2.
// With FX_TEST_STALLS the scratchpads are often busy.
`include "fx_config.svh"
`default_nettype none
module fx_exec #(
  parameter ONE = 0  // as the engine that it stands for
) (
  input  wire         clk,
  input  wire         rst,
  input  wire         cmd_valid,
  output logic        cmd_ready,
  input  wire [255:0] cmd,
  output logic        done,
  output logic        err_valid,
  output logic [3:0]  err_code,
  output logic        busy,
  output logic        multiply,
  input  wire         ld_valid,
  output logic        ld_ready,
  input  wire         ld_new,
  input  wire [2:0]   ld_next_space,
  input  wire [5:0]   ld_next_lane,
  input  wire [2:0]   ld_space,
  input  wire [5:0]   ld_lane,
  input  wire [15:0]  ld_addr,
  input  wire [8*`FX_WORD_BYTES-1:0] ld_data,
  input  wire         st_valid,
  output logic        st_ready,
  input  wire [2:0]   st_space,
  input  wire [5:0]   st_lane,
  input  wire [15:0]  st_addr,
  output logic        st_rvalid,
  output logic [8*`FX_WORD_BYTES-1:0] st_rdata,
  input  wire [7:0]   ls0_list,
  input  wire [15:0]  ls0_index,
  output logic [15:0] ls0_token,
  output logic [2:0]  ls0_rank,
  output logic [15:0] ls0_count,
  input  wire [7:0]   ls1_list,
  input  wire [15:0]  ls1_index,
  output logic [15:0] ls1_token,
  output logic [2:0]  ls1_rank,
  output logic [15:0] ls1_count,
  input  wire [7:0]   ct_list,
  output logic [15:0] ct_count,
  output logic [31:0] dropped
);
  logic [8*`FX_WORD_BYTES-1:0] x [0:`FX_ROWS*`FX_X_WORDS-1], y [0:`FX_ROWS*`FX_Y_WORDS-1];
  logic [15:0] left;
  logic [31:0] noise;
`ifdef FX_TEST_STALLS
  assign ld_ready = noise[1:0] != 0;
  assign st_ready = noise[3:2] != 0;
`else
  assign ld_ready = 1'b1;
  assign st_ready = 1'b1;
`endif
  assign cmd_ready = left == 16'd1;
  assign multiply = left != 0;
  assign busy = left != 0;
  assign err_valid = cmd_valid && cmd[`FX_GEMM_PARAM] == 16'hffff;
  assign err_code = `FX_ERR_SCRATCH;
  assign dropped = 32'd7;

  logic [19:0] ends;
  logic [1:0] reads;
  logic [8*`FX_WORD_BYTES-1:0] word, word_q;
  always_ff @(posedge clk) begin
    noise <= rst ? 32'd12345 : {noise[30:0], noise[31] ^ noise[21] ^ noise[1] ^ noise[0]};
    if (ld_valid && ld_ready && ld_space == `FX_SPACE_X) x[ld_lane * `FX_X_WORDS + ld_addr] <= ld_data;
    if (ld_valid && ld_ready && ld_space == `FX_SPACE_Y) y[ld_lane * `FX_Y_WORDS + ld_addr] <= ld_data;
    word <= st_space == `FX_SPACE_X ? x[st_lane * `FX_X_WORDS + st_addr] : y[st_lane * `FX_Y_WORDS + st_addr];
    word_q <= word;
    st_rdata <= word_q;
    {st_rvalid, reads} <= rst ? '0 : {reads, st_valid && st_ready};
    left <= rst ? '0 : left == 0 && cmd_valid ? cmd[`FX_GEMM_WORDS] : left - 16'(left != 0);
    {done, ends} <= rst ? '0 : {ends, left == 16'd1};
    {ls0_token, ls0_rank, ls0_count} <= {16'd3 * ls0_index + 16'(ls0_list), 2'b0, ls0_index[0], 16'(ls0_list)};
    {ls1_token, ls1_rank, ls1_count} <= {16'd3 * ls1_index + 16'(ls1_list), 2'b0, ls1_index[0], 16'(ls1_list)};
    ct_count <= {8'd0, ct_list};
  end
endmodule
