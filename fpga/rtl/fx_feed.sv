// fx_feed: what turns a row's or column's words into a stream of bytes. Control comes from the neighbour before and goes to the next one
// cycle later. In the cycle of ld_i the memory reads word at_i (if re_i); its data comes in `word` one cycle later, and its bytes are
// in `element`, the lowest first, from the cycle after that on; the next follows whenever shift_i was high two cycles before. Behind the last
// come zeros, and zeros are what comes without re_i.
`default_nettype none
module fx_feed #(
  parameter WORD_BYTES = 8,
  parameter ADDR_BITS = 9
) (
  input  wire                     clk,
  input  wire                     ld_i,
  input  wire                     re_i,
  input  wire  [ADDR_BITS-1:0]    at_i,
  input  wire                     shift_i,
  output logic                    ld_o,
  output logic                    re_o,
  output logic [ADDR_BITS-1:0]    at_o,
  output logic                    shift_o,
  input  wire  [8*WORD_BYTES-1:0] word,
  output wire  [7:0]              element
);
  logic [8*WORD_BYTES-1:0] bytes;
  wire [8*WORD_BYTES-1:0] rest = {8'b0, bytes[8*WORD_BYTES-1:8]};
  always_ff @(posedge clk) begin
    ld_o <= ld_i;
    re_o <= re_i;
    at_o <= at_i;
    shift_o <= shift_i;
    if (ld_o || shift_o) bytes <= ld_o ? (re_o ? word : {8*WORD_BYTES{1'b0}}) : rest;
  end
  assign element = bytes[7:0];
endmodule
