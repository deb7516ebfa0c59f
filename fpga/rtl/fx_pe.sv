// fx_pe: one multiplier of the array. Row operands move right and column operands down, a register each; the sum stays
// until `last`, then moves left to the lane in the result registers of the row.
//
// With an operand pair in a_i and w_i in cycle e (first_i and last_i beside it), the tile's sum is in res_o from e+3, with SERIAL_MUL e+4.
// The result registers take their right neighbour's value whenever `shift` is high and no sum comes.
//
// With SERIAL_MUL multipliers are made of logic (row operands of 8 bits), by Booth's recoding (1951) to digits from -2 to 2, and what comes after a tile begins
// from zero without `first`: the operand pair after the last one is lost, and has to be zero.
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
  output wire                        first_o,
  output wire                        last_o,
  input  wire                        shift,
  input  wire         [ACC_BITS-1:0] res_i,
  output logic        [ACC_BITS-1:0] res_o
);
  generate
    if (SERIAL_MUL) begin : booth
      // A digit's product, less one where the digit is negative: those ones are the carries into the sums.
      function automatic [9:0] digit(input [2:0] w, input [7:0] x);
        digit = {10{w[2]}} ^ (w[1] ^ w[0] ? {{2{x[7]}}, x} : w == 3'b011 || w == 3'b100 ? {x[7], x, 1'b0} : 10'd0);
      endfunction
      wire [9:0] d0 = digit({w_i[1:0], 1'b0}, a_i);
      wire [9:0] d1 = digit(w_i[3:1], a_i);
      wire [9:0] d2 = digit(w_i[5:3], a_i);
      wire [9:0] d3 = digit(w_i[7:5], a_i);
      logic [12:0] low, high;
      logic [15:0] product;
      logic [ACC_BITS-1:0] sum;
      logic one_0, one_0_late, one_2, last, last_late, capture;
      always_ff @(posedge clk) begin
        low <= {{{3{d0[9]}}, d0[9:2]} + {d1[9], d1} + 11'(w_i[3]), d0[1:0]};
        high <= {{{3{d2[9]}}, d2[9:2]} + {d3[9], d3} + 11'(w_i[7]), d2[1:0]};
        {one_0, one_2} <= {w_i[1], w_i[5]};
        product <= {{{3{low[12]}}, low[12:4]} + high[11:0] + 12'(one_2), low[3:0]};
        one_0_late <= one_0;
        sum <= capture ? '0 : sum + ACC_BITS'($signed(product)) + ACC_BITS'(one_0_late);
        {last, last_late, capture} <= {last_i, last, last_late};
        if (capture) res_o <= sum;
        else if (shift) res_o <= res_i;
      end
      assign first_o = 1'b0;
      assign last_o = last;
    end else begin : whole
      logic signed [A_BITS+7:0]   product;
      logic signed [ACC_BITS-1:0] sum;
      logic first, last, capture;
      always_ff @(posedge clk) begin
        product <= a_i * w_i;
        {first, last, capture} <= {first_i, last_i, last};
        sum <= (first ? {ACC_BITS{1'b0}} : sum) + ACC_BITS'(product);
        if (capture) res_o <= sum;
        else if (shift) res_o <= res_i;
      end
      assign first_o = first;
      assign last_o = last;
    end
  endgenerate

  always_ff @(posedge clk) begin
    a_o <= a_i;
    w_o <= w_i;
  end
endmodule
