// fx_address: adds a step to an address of BITS bits, which carries one bit more: that it lies behind the end of its memory.
`default_nettype none
module fx_address #(
  parameter BITS = 16
) (
  input  wire  [BITS:0] at,
  input  wire  [BITS:0] step,
  output wire  [BITS:0] next
);
  wire [BITS:0] sum = {1'b0, at[BITS-1:0]} + {1'b0, step[BITS-1:0]};
  assign next = {sum[BITS] | at[BITS] | step[BITS], sum[BITS-1:0]};
endmodule
