// fx_lane: what stands behind a row of the array: the scale path, the finish, and the packing of results into words. Its control (ctl, made
// by fx_lane_control) comes from the lane before and goes to the next one cycle later; each of its parts runs ahead of the next by the
// stages of the pipeline between them, so that nothing but data is delayed here.
`default_nettype none
module fx_lane #(
  parameter ROWS = 8,
  parameter WORD_BYTES = 8,
  parameter ACC_BITS = 32,
  parameter MUL_BITS = 17,
  parameter SERIAL_MUL = 0,
  parameter TABLES = 1,
  parameter Y_BITS = 9,          // of an address of Y
  parameter D_BITS = 9,          // of an address of any space that takes results
  localparam R_BITS = $clog2(ROWS),
  localparam B_BITS = $clog2(WORD_BYTES),
  localparam TABLE_BITS = TABLES > 1 ? $clog2(TABLES) : 1,
  localparam CTL_BITS = 4 + R_BITS + MUL_BITS + 6 + 1 + Y_BITS + B_BITS + 2 + R_BITS + 24 + 2 + D_BITS
) (
  input  wire                      clk,
  input  wire  [CTL_BITS-1:0]      ctl,
  output wire  [CTL_BITS-1:0]      ctl_next,
  // The array's sum; a lane part's value, its multiplier.
  input  wire  [ACC_BITS-1:0]      res,
  input  wire  [ACC_BITS-1:0]      inj_acc,
  input  wire  [MUL_BITS-1:0]      inj_mul,
  output wire  signed [24:0]       t,
  // Constants of the descriptor.
  input  wire                      by_row,     // RowParam
  input  wire                      residual,
  input  wire                      relu,
  input  wire                      wide,
  input  wire  signed [7:0]        zero,
  input  wire  [15:0]              res_mul,
  input  wire                      use_table,
  input  wire  [TABLE_BITS-1:0]    table_at,
  // Writing of tables.
  input  wire                      tw_valid,
  input  wire  [TABLE_BITS+7:0]    tw_at,
  input  wire  [7:0]               tw_data,
  // Reading of Y: the word comes one cycle later, its byte is in `y` after another.
  output wire                      y_re,
  output wire  [Y_BITS-1:0]        y_at,
  input  wire  [8*WORD_BYTES-1:0]  y_word,
  output logic signed [7:0]        y,
  // A word of results.
  output wire                      w_valid,
  output wire  [D_BITS-1:0]        w_at,
  output logic [8*WORD_BYTES-1:0]  w_word
);
  // v: a value enters the scale path; inject: it is inj_acc, own: with inj_mul. rec: a record comes for the lane rec_at lanes on.
  // bias_v, bias_rec: the same for the bias, later. pack: a result is there.
  logic v, inject, own, rec, bias_v, bias_rec, pack;
  logic [R_BITS-1:0] rec_at, bias_at;
  logic [MUL_BITS-1:0] mul;
  logic [5:0] shift;
  logic [B_BITS-1:0] y_byte, y_byte_1;
  logic signed [23:0] bias, bias_held;
  assign {v, inject, own, rec, rec_at, mul, shift, y_re, y_at, y_byte, bias_v, bias_rec, bias_at, bias, pack, w_valid, w_at} = ctl;
  // With SERIAL_MUL records come to all lanes at once: see fx_lane_control.
  localparam SHARED = SERIAL_MUL != 0 && ROWS <= 8;
  localparam REC_BITS = 2 * R_BITS + 2 + MUL_BITS + 6 + 24;
  wire [REC_BITS-1:0] record = {rec, rec_at - R_BITS'(1), mul, shift, bias_rec, bias_at - R_BITS'(1), bias};
  logic [REC_BITS-1:0] record_q, record_next;
  logic [CTL_BITS-REC_BITS-1:0] rest;
  assign record_next = SHARED ? record : record_q;
  wire rec_n, bias_rec_n;
  wire [R_BITS-1:0] rec_at_n, bias_at_n;
  wire [MUL_BITS-1:0] mul_n;
  wire [5:0] shift_n;
  wire [23:0] bias_n;
  wire v_n, inject_n, own_n, y_re_n, bias_v_n, pack_n, w_valid_n;
  wire [Y_BITS-1:0] y_at_n;
  wire [B_BITS-1:0] y_byte_n;
  wire [D_BITS-1:0] w_at_n;
  assign {rec_n, rec_at_n, mul_n, shift_n, bias_rec_n, bias_at_n, bias_n} = record_next;
  assign {v_n, inject_n, own_n, y_re_n, y_at_n, y_byte_n, bias_v_n, pack_n, w_valid_n, w_at_n} = rest;
  assign ctl_next = {v_n, inject_n, own_n, rec_n, rec_at_n, mul_n, shift_n, y_re_n, y_at_n, y_byte_n, bias_v_n, bias_rec_n, bias_at_n,
                     bias_n, pack_n, w_valid_n, w_at_n};
  always_ff @(posedge clk) begin
    record_q <= record;
    rest <= {v, inject, own, y_re, y_at, y_byte, bias_v, pack, w_valid, w_at};
  end

  fx_scale #(.ACC_BITS(ACC_BITS), .MUL_BITS(MUL_BITS), .SERIAL_MUL(SERIAL_MUL)) scale (
    .clk(clk), .load(v), .load_mul(by_row ? rec && rec_at == 0 : v), .acc(inject ? inj_acc : res), .mul(own ? inj_mul : mul),
    .shift(shift), .bias(bias_held), .t(t));

  logic y_load, y_load_1;
  always_ff @(posedge clk) begin
    if (by_row ? bias_rec && bias_at == 0 : bias_v) bias_held <= bias;
    y_byte_1 <= y_byte;
    y <= y_word[8*y_byte_1 +: 8];
    {y_load, y_load_1} <= {y_load_1, y_re};
  end

  wire [15:0] result;
  fx_finish #(.TABLES(TABLES), .SERIAL_MUL(SERIAL_MUL)) finish (
    .clk(clk), .t(t), .y(residual ? y : 8'sd0), .y_load(y_load || !residual), .relu(relu), .wide(wide), .zero(zero), .res_mul(res_mul),
    .use_table(use_table), .table_at(table_at), .tw_valid(tw_valid), .tw_at(tw_at), .tw_data(tw_data), .result(result));

  wire [8*WORD_BYTES+15:0] by_two = {result, w_word};
  wire [8*WORD_BYTES+7:0] by_one = {result[7:0], w_word};
  always_ff @(posedge clk) if (pack) w_word <= wide ? by_two[16 +: 8*WORD_BYTES] : by_one[8 +: 8*WORD_BYTES];
endmodule
