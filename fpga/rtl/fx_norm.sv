// fx_norm: r = min(⌊2^36/⌊√u⌋⌋, 2^17−1) of a row's variance v, u = v·4^e in [2^38, 2^40), and the shift 24−e that
// goes with it (isa.NewNorm), for one lane. Both are found digit by digit with one subtractor; v = 0 gives r = 0.
//
// fx_vector says what to do in each cycle: LOAD takes v; FX_NORMALISE_STEPS times NORMALISE; FX_ROOT_STEPS times
// ROOT; INVERT; FX_DIVIDE_STEPS times DIVIDE, whatever v is. The outputs hold from then to the next LOAD.
`default_nettype none
`include "fx_vector_codes.sv"

module fx_norm (
  input  wire        clk,
  input  wire [3:0]  op,
  input  wire [39:0] v,
  output wire [16:0] r,
  output wire [4:0]  shift
);
  logic [39:0] u;        // what is left of u, its highest digits first; then the digits of r
  logic [19:0] rem;     // after ROOT's last step it is not needed: one bit fewer
  logic [19:0] root;
  logic [4:0]  down;
  wire divide = op == `FX_V_DIVIDE;

  // Root: the remainder with two more digits of u, less 4·root + 1. Division: twice the remainder less the root.
  wire [22:0] from  = divide ? {2'b0, rem, 1'b0} : {1'b0, rem, u[39:38]};
  wire [22:0] less  = divide ? {3'b0, root} : {1'b0, root, 2'b01};
  wire        fits  = from >= less;
  wire [19:0] diff  = from[19:0] - less[19:0];

  always_ff @(posedge clk)
    case (op)
      `FX_V_LOAD: begin u <= v; down <= 5'd24; rem <= 0; root <= 0; end
      `FX_V_NORMALISE: if (u[39:38] == 0) begin u <= {u[37:0], 2'b0}; down <= down - 5'd1; end
      `FX_V_ROOT: begin u <= {u[37:0], 2'b0}; root <= {root[18:0], fits}; rem <= fits ? diff : from[19:0]; end
      `FX_V_INVERT: rem <= 20'd1 << 19;
      // Of a root of 2^19 the digits are all ones, which is the limit asked for; without a highest bit it is zero.
      `FX_V_DIVIDE: begin u <= {u[38:0], fits & root[19]}; rem <= fits ? diff : from[19:0]; end
      default: ;
    endcase
  assign r = u[16:0];
  assign shift = down;
endmodule
`default_nettype wire
