// fx_array: ROWS x COLS multipliers, output-stationary. Operands come skewed: element k of row i (of column j) i (j) cycles after that of row 0.
// first and last are those of row 0's operands; they go down from row to row. So does `shift` for the result registers (SERIAL_MUL; else they
// shift always, so that a tile's columns arrive at a row's res every second cycle).
`default_nettype none
module fx_array #(
  parameter ROWS = 8,
  parameter COLS = 8,
  parameter A_BITS = 8,
  parameter ACC_BITS = 32,
  parameter SERIAL_MUL = 0
) (
  input  wire                      clk,
  input  wire  [ROWS*A_BITS-1:0]   a,
  input  wire  [COLS*8-1:0]        w,
  input  wire                      first,
  input  wire                      last,
  input  wire                      shift,
  output wire  [ROWS*ACC_BITS-1:0] res
);
  wire signed [A_BITS-1:0]   across [0:ROWS-1][0:COLS];
  wire signed [7:0]          down   [0:ROWS][0:COLS-1];
  wire        [ACC_BITS-1:0] back   [0:ROWS-1][0:COLS];
  wire                       begins [0:ROWS-1][0:COLS];
  wire                       ends   [0:ROWS-1][0:COLS];
  logic [ROWS-1:0] first_next, last_next, shift_next;
  wire [ROWS:0] first_row = {first_next, first};
  wire [ROWS:0] last_row = {last_next, last};
  wire [ROWS:0] shift_row = {shift_next, shift};
  genvar i, j;
  always_ff @(posedge clk) {first_next, last_next, shift_next} <= {first_row[ROWS-1:0], last_row[ROWS-1:0], shift_row[ROWS-1:0]};
  generate
    for (j = 0; j < COLS; j = j + 1) begin : top
      assign down[0][j] = w[8*j +: 8];
    end
    for (i = 0; i < ROWS; i = i + 1) begin : row
      assign across[i][0] = a[A_BITS*i +: A_BITS];
      assign begins[i][0] = first_row[i];
      assign ends[i][0] = last_row[i];
      assign back[i][COLS] = {ACC_BITS{1'b0}};
      assign res[ACC_BITS*i +: ACC_BITS] = back[i][0];
      for (j = 0; j < COLS; j = j + 1) begin : col
        fx_pe #(.A_BITS(A_BITS), .ACC_BITS(ACC_BITS), .SERIAL_MUL(SERIAL_MUL)) pe (
          .clk(clk), .a_i(across[i][j]), .w_i(down[i][j]), .first_i(begins[i][j]), .last_i(ends[i][j]),
          .a_o(across[i][j+1]), .w_o(down[i+1][j]), .first_o(begins[i][j+1]), .last_o(ends[i][j+1]),
          .shift(SERIAL_MUL == 0 || shift_row[i]), .res_i(back[i][j+1]), .res_o(back[i][j]));
      end
    end
  endgenerate
endmodule
