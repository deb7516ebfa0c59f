// The reciprocal of a sum, isa.Reciprocal bit by bit: z is the shift that brings the sum's highest bit to bit 31, r is
// 2^47 / (sum << z), at most 65535; of zero both are zero. It takes CYCLES cycles: five for the shift, 17 for the
// bits of a restoring division, the highest first.
//
// start takes sum; done is high for one cycle when r and z are valid, and they stay until the next start, which
// must not come before done. On the way bit_valid tells that r[0] is a new bit of r, 16 times.
`default_nettype none
module fx_reciprocal (
  input  wire         clk,
  input  wire         rst,
  input  wire         start,
  input  wire  [31:0] sum,
  output logic        done,
  output logic        bit_valid,
  output logic [15:0] r,
  output logic [4:0]  z
);
  logic [31:0] n;      // the sum, shifted
  logic [32:0] rest;
  logic [4:0]  step;   // 1 to 5: shift by 16 to 1; 6 to 22: a bit of r
  logic        full;   // the sum is a power of two: all bits of r are one
  wire  [32:0] less = rest - {1'b0, n};  // rest < 2n, so its highest bit tells whether n fits
  wire         fits = ~less[32];

  // Shifts by 16, 8, 4, 2 and 1, if so many of the highest bits are zero.
  wire [4:0] by = 5'd16 >> (step - 5'd1);
  logic      empty;
  always_comb begin
    case (step)
      5'd1: empty = n[31:16] == 0;
      5'd2: empty = n[31:24] == 0;
      5'd3: empty = n[31:28] == 0;
      5'd4: empty = n[31:30] == 0;
      default: empty = ~n[31];
    endcase
  end

  always_ff @(posedge clk) begin
    done <= 1'b0;
    bit_valid <= 1'b0;
    if (start) begin
      n <= sum;
      step <= 5'd1;
      z <= 5'd0;
      r <= 16'd0;
      full <= 1'b0;
      rest <= 33'h80000000;
    end else if (step != 0) begin
      step <= step + 5'd1;
      if (step <= 5'd5) begin
        if (empty) begin
          n <= n << by;
          z <= z | by;
        end
      end else begin
        // The first bit is one for a power of two alone. Division by zero gives ones: a sum of zero is told by n[31].
        rest <= fits ? {less[31:0], 1'b0} : {rest[31:0], 1'b0};
        full <= full | (step == 5'd6 && fits);
        if (step != 5'd6) begin
          r <= {r[14:0], (fits | full) & n[31]};
          bit_valid <= 1'b1;
        end
        if (step == 5'd22) begin
          step <= 5'd0;
          done <= 1'b1;
          if (~n[31]) z <= 5'd0;
        end
      end
    end
    if (rst) step <= 5'd0;
  end
endmodule
`default_nettype wire
