// fx_pe: one multiplier of the array. Row operands move right and column operands down, a register each; the sum stays
// until `last`, then moves left to the lane in the result registers of the row.
//
// With an operand pair in a_i and w_i in cycle e (first_i and last_i beside it), the tile's sum is in res_o from e+3, with SERIAL_MUL e+4.
// The result registers take their right neighbour's value whenever `shift` is high and no sum comes.
`default_nettype none
module fx_pe #(
  parameter A_BITS = 8,
  parameter ACC_BITS = 32,
  parameter SERIAL_MUL = 0
) (
  input  wire                        clk,
  input  wire  signed [A_BITS-1:0]   a_i,
  input  wire  signed [7:0]          w_i,
  input  wire                        first_i,
  input  wire                        last_i,
  output logic signed [A_BITS-1:0]   a_o,
  output logic signed [7:0]          w_o,
  output logic                       first_o,
  output logic                       last_o,
  input  wire                        shift,
  input  wire         [ACC_BITS-1:0] res_i,
  output logic        [ACC_BITS-1:0] res_o
);
  logic signed [A_BITS+7:0]   product;
  logic signed [ACC_BITS-1:0] sum;
  logic first, last, capture;   // of the product; of the sum

  generate
    if (SERIAL_MUL) begin : halves
      // The product of each half of w, then their sum: short paths where multipliers are made of logic.
      logic signed [A_BITS+4:0] low;
      logic signed [A_BITS+3:0] high;
      always_ff @(posedge clk) begin
        low <= a_i * $signed({1'b0, w_i[3:0]});
        high <= a_i * $signed(w_i[7:4]);
        product <= {{3{low[A_BITS+4]}}, low} + {high, 4'b0};
        first <= first_o;
        last <= last_o;
      end
    end else begin : whole
      always_ff @(posedge clk) begin
        product <= a_i * w_i;
        first <= first_i;
        last <= last_i;
      end
    end
  endgenerate

  always_ff @(posedge clk) begin
    a_o <= a_i;
    w_o <= w_i;
    first_o <= first_i;
    last_o <= last_i;
    capture <= last;
    sum <= (first ? {ACC_BITS{1'b0}} : sum) + ACC_BITS'(product);
    if (capture) res_o <= sum;
    else if (shift) res_o <= res_i;
  end
endmodule
