// fx_lane_control: what lane 0 is told, cycle by cycle (ctl of fx_lane). It counts a tile's columns as they leave the array, lets lane parts inject
// values between them, walks through a segment's records, residual and results, and holds the parameter memory. See fx_exec for
// the times and the rules of the ports.
`default_nettype none
`include "fx_config.svh"
module fx_lane_control #(
  parameter ROWS = 8,
  parameter COLS = 8,
  parameter WORD_BYTES = 8,
  parameter MUL_BITS = 17,
  parameter SERIAL_MUL = 0,
  parameter PARAMS = 256,
  parameter TAG_BITS = 2,
  parameter TAGGED = 1,          // there are values of a tag other than 0
  parameter X_BITS = 9,
  parameter W_BITS = 9,
  parameter Y_BITS = 9,
  parameter D_BITS = 9,
  parameter CTL_BITS = 1,
  parameter RES = 13,            // from a tile's last slot to its column 0 at lane 0
  parameter STEP = 2,            // from one column to the next
  parameter PV = 3,              // of fx_scale
  localparam R_BITS = $clog2(ROWS),
  localparam C_BITS = $clog2(COLS),
  localparam B_BITS = $clog2(WORD_BYTES),
  localparam P_BITS = PARAMS > 1 ? $clog2(PARAMS) : 1
) (
  input  wire                      clk,
  input  wire                      rst,
  // A tile whose last slot is fed in this cycle.
  input  wire                      tile,
  input  wire  [TAG_BITS-1:0]      tile_tag,
  input  wire  [D_BITS:0]          tile_dst,
  input  wire  [Y_BITS:0]          tile_res,
  input  wire  [P_BITS:0]          tile_par,
  // The records of a panel's rows (RowParam), only while no result is on its way.
  input  wire                      rr_valid,
  input  wire  [P_BITS:0]          rr_par,
  output wire                      rr_busy,
  // Segments of injected values, and the values.
  input  wire                      sg_valid,
  output wire                      sg_ready,
  input  wire  [D_BITS:0]          sg_dst,
  input  wire  [Y_BITS:0]          sg_res,
  input  wire  [P_BITS:0]          sg_par,
  input  wire                      sg_one,
  input  wire                      ij_valid,
  output wire                      ij_ready,
  input  wire  [TAG_BITS-1:0]      ij_tag,
  input  wire                      ij_own,
  input  wire                      alt,
  output wire  [TAG_BITS-1:0]      alt_tag,
  input  wire  [MUL_BITS-1:0]      alt_mul,
  input  wire  [5:0]               alt_shift,
  input  wire                      vy_re,
  input  wire  [Y_BITS:0]          vy_at,
  input  wire  [B_BITS-1:0]        vy_byte,
  // Constants of the descriptor.
  input  wire                      by_row,
  input  wire                      residual,
  input  wire                      wide,
  input  wire  [2:0]               space,
  // Writing of records.
  input  wire                      pw_valid,
  input  wire  [15:0]              pw_at,
  input  wire  [8*WORD_BYTES-1:0]  pw_data,
  // To lane 0 and row 0.
  output wire  [CTL_BITS-1:0]      ctl,
  output wire                      shift,
  output wire                      res_valid,   // a column of the array, not an injected value
  output wire  [TAG_BITS-1:0]      res_tag,
  output wire  [C_BITS-1:0]        res_col,
  output wire                      t_valid,
  output wire  [TAG_BITS-1:0]      t_tag,
  output wire  [C_BITS-1:0]        t_col,
  output wire                      quiet,       // no tile and no value is on its way
  output wire                      writes,      // lane 0 writes a word in the next cycle
  output logic                     err          // an address behind the end of its memory
);
  // Stages count from S-2, in which the first record is read; see fx_exec for S. RY, BI, PK and WR are the stages in which the counters of residual, bias,
  // elements of a word and words of results are used.
  localparam RY = SERIAL_MUL ? PV - 6 : PV + 2;
  localparam BI = PV + 3;
  localparam PK = PV + 10;
  localparam WR = PV + 11;
  localparam TV = PV + 7;
  localparam TAIL = WR + 1 + ROWS;
  localparam QUIET = RES + STEP * (COLS - 1);
  localparam Q_BITS = $clog2((QUIET > TAIL ? QUIET : TAIL) + 1);

  // ---- The array's columns.
  logic [RES-4:0] tile_d;
  logic [TAG_BITS-1:0] next_tag, drain_tag;
  logic [D_BITS:0] next_dst;
  logic [Y_BITS:0] next_res;
  logic [P_BITS:0] next_par;
  logic draining;
  logic [C_BITS-1:0] column;
  logic [4:0] phase;
  wire begins = tile_d[RES-4];
  wire drain = draining && phase == 0;
  always_ff @(posedge clk) begin
    tile_d <= rst ? '0 : {tile_d[RES-5:0], tile};
    if (tile) {next_tag, next_dst, next_res, next_par} <= {tile_tag, tile_dst, tile_res, tile_par};
    phase <= begins || phase == 5'(STEP - 1) ? 5'd0 : phase + 5'd1;
    if (drain) column <= column + C_BITS'(1);
    if (begins) {column, drain_tag} <= {{C_BITS{1'b0}}, next_tag};
    if (rst) draining <= 1'b0;
    else if (begins) draining <= 1'b1;
    else if (drain && column == C_BITS'(COLS - 1)) draining <= 1'b0;
  end

  // ---- Stage 0: a column or an injected value, or a row's record.
  logic [4:0] spacing;   // SERIAL_MUL: cycles in which nothing may follow
  wire inject = ij_valid && ij_ready;
  wire v = drain || inject;
  wire [TAG_BITS-1:0] tag = drain ? drain_tag : ij_tag;
  wire finish = v && tag == 0;
  assign ij_ready = !drain && spacing == 0;
  always_ff @(posedge clk) spacing <= SERIAL_MUL == 0 || rst ? 5'd0 : v ? 5'(STEP - 1) : spacing - 5'(spacing != 0);

  logic [R_BITS-1:0] rec_row;
  logic rec;
  assign rr_busy = rec;
  always_ff @(posedge clk) begin
    if (rr_valid) rec_row <= '0;
    else if (rec) rec_row <= rec_row + R_BITS'(1);
    rec <= !rst && (rr_valid || (rec && rec_row != R_BITS'(ROWS - 1)));
  end

  // ---- What follows later of a value, and of a segment's start.
  logic [WR:1] finish_d;
  logic [TV:1] value_d;
  wire [TV:1] v_d = TAGGED ? value_d : finish_d[TV:1];
  logic [2:1] rec_d;
  logic [(TV+1)*TAG_BITS-1:0] tag_d;
  logic [(TV+1)*C_BITS-1:0] column_d;
  logic [2*R_BITS-1:0] row_d;
  logic [2:1] inject_d, own_d, drain_d;
  wire sg_start = sg_valid && sg_ready;
  wire tile_start = begins && next_tag == 0;
  wire start = tile_start || sg_start;
  wire param_start = rr_valid || (start && !by_row);
  always_ff @(posedge clk) begin
    finish_d <= rst ? '0 : {finish_d[WR-1:1], finish};
    value_d <= rst ? '0 : {value_d[TV-1:1], v};
    rec_d <= {rec_d[1], rec};
    row_d <= {row_d[R_BITS-1:0], rec_row};
    tag_d <= {tag_d[TV*TAG_BITS-1:0], tag};
    column_d <= {column_d[TV*C_BITS-1:0], column};
    inject_d <= {inject_d[1], inject};
    own_d <= {own_d[1], ij_own};
    drain_d <= {drain_d[1], drain && !rst};
  end
  assign alt_tag = tag_d[0 +: TAG_BITS];
  assign res_valid = drain_d[2];
  assign res_tag = tag_d[TAG_BITS +: TAG_BITS];
  assign res_col = column_d[C_BITS +: C_BITS];
  assign t_valid = v_d[TV];
  assign t_tag = tag_d[(TV-1)*TAG_BITS +: TAG_BITS];
  assign t_col = column_d[(TV-1)*C_BITS +: C_BITS];

  generate
    if (SERIAL_MUL) begin : serial
      // The result registers shift in the cycle before the lane takes the next column.
      logic shifts;
      always_ff @(posedge clk) shifts <= drain && column != 0;
      assign shift = shifts;
    end else begin : whole
      assign shift = 1'b1;
    end
  endgenerate

  // ---- The segment: where its records, residual and results begin, until the counters have taken that over.
  // The next one starts PK cycles later at the earliest: `hold`, which counts down from PK, tells the stages of this one.
  logic [D_BITS:0] dst;
  logic [Y_BITS:0] res;
  logic [P_BITS:0] par;
  logic one;
  logic [5:0] hold;
  assign sg_ready = hold <= 6'd1;
  wire start_ry = hold == 6'(PK + 1 - RY), start_bi = hold == 6'(PK + 1 - BI), start_pk = hold == 6'd1;
  always_ff @(posedge clk) begin
    if (start) {dst, res} <= tile_start ? {next_dst, next_res} : {sg_dst, sg_res};
    if (start) one <= !tile_start && sg_one;
    if (param_start) par <= rr_valid ? rr_par : tile_start ? next_par : sg_par;
    hold <= rst ? 6'd0 : start ? 6'(PK) : hold - 6'(hold != 0);
  end

  // The rows' records once more, for their biases, BI cycles later.
  // With SERIAL_MUL values are so far apart that a record stays at its memory's port until the last lane has it (SHARED): it goes to
  // all lanes at once, with rec and its row, and its address steps ROWS cycles later.
  localparam SHARED = SERIAL_MUL != 0 && ROWS <= 8;
  localparam LATER = SHARED ? ROWS : 0;
  wire [WR:0] finish_s = {finish_d, finish};
  logic [5:0] rows_left;
  logic [R_BITS-1:0] bias_row;
  logic rec_bi;
  logic [2:1] rec_bi_d;
  logic [2*R_BITS-1:0] bias_row_d;
  wire rows_bi = rows_left == 6'd1;
  wire param_bi = rows_bi || (start_bi && !by_row);
  always_ff @(posedge clk) begin
    rows_left <= rst ? 6'd0 : rr_valid ? 6'(BI) : rows_left - 6'(rows_left != 0);
    if (rows_bi) bias_row <= '0;
    else if (rec_bi) bias_row <= bias_row + R_BITS'(1);
    rec_bi <= !rst && (rows_bi || (rec_bi && bias_row != R_BITS'(ROWS - 1)));
    rec_bi_d <= {rec_bi_d[1], rec_bi};
    bias_row_d <= {bias_row_d[R_BITS-1:0], bias_row};
  end

  // ---- Records: multiplier and shift at stage 0, the bias at BI.
  logic [P_BITS:0] mul_at, bias_at;
  wire step_0 = rec || (finish_s[LATER] && !by_row && !one && !alt);
  wire step_bi = rec_bi || (finish_s[BI+LATER] && !by_row && !one && !alt);
  wire [15:0] mul_q;
  wire [5:0] shift_q;
  wire [23:0] bias_q;
  logic [MUL_BITS-1:0] mul_q1, mul_c;
  logic [5:0] shift_q1, shift_c;
  logic [23:0] bias_q1, bias_c;
  fx_params #(.PARAMS(PARAMS), .WORD_BYTES(WORD_BYTES)) params (
    .clk(clk), .we(pw_valid), .waddr(pw_at), .wdata(pw_data), .mul_at(mul_at[P_BITS-1:0]), .mul(mul_q), .shift(shift_q),
    .bias_at(bias_at[P_BITS-1:0]), .bias(bias_q));
  always_ff @(posedge clk) begin
    if (param_start) mul_at <= rr_valid ? rr_par : tile_start ? next_par : sg_par;
    else if (step_0) mul_at <= mul_at + (P_BITS+1)'(1);
    if (param_bi) bias_at <= par;
    else if (step_bi) bias_at <= bias_at + (P_BITS+1)'(1);
    mul_q1 <= alt ? alt_mul : MUL_BITS'($signed(mul_q));
    shift_q1 <= alt ? alt_shift : shift_q;
    bias_q1 <= alt ? 24'd0 : bias_q;
  end
  assign {mul_c, shift_c, bias_c} = SHARED ? {MUL_BITS'($signed(mul_q)), shift_q, bias_q} : {mul_q1, shift_q1, bias_q1};

  // ---- The residual's elements.
  logic [Y_BITS:0] res_at;
  logic [B_BITS-1:0] res_byte;
  logic y_re;
  logic [Y_BITS-1:0] y_at;
  logic [B_BITS-1:0] y_byte;
  wire use_res = finish_d[RY] && residual;
  always_ff @(posedge clk) begin
    if (start_ry) {res_at, res_byte} <= {res, {B_BITS{1'b0}}};
    else if (use_res) {res_at, res_byte} <= {res_at, res_byte} + (Y_BITS+B_BITS+1)'(1);
    y_re <= vy_re || use_res;
    y_at <= vy_re ? vy_at[Y_BITS-1:0] : res_at[Y_BITS-1:0];
    y_byte <= vy_re ? vy_byte : res_byte;
  end

  // ---- Results: WORD_BYTES, or with wide half as many, are a word.
  logic [B_BITS-1:0] count;
  logic word, w_valid;
  logic [D_BITS:0] dst_at;
  logic [D_BITS-1:0] w_at;
  wire full = count == (wide ? B_BITS'(WORD_BYTES / 2 - 1) : B_BITS'(WORD_BYTES - 1));
  wire [D_BITS:0] high = dst_at >> (space == `FX_SPACE_X ? X_BITS : space == `FX_SPACE_W ? W_BITS : Y_BITS);
  wire beyond = high != 0;
  assign writes = word && !beyond && !rst;
  always_ff @(posedge clk) begin
    if (start_pk) count <= '0;
    else if (finish_d[PK]) count <= full ? '0 : count + B_BITS'(1);
    word <= !rst && finish_d[PK] && full;
    if (start_pk) dst_at <= dst;
    else if (word) dst_at <= dst_at + (D_BITS+1)'(1);
    w_valid <= writes;
    w_at <= dst_at[D_BITS-1:0];
  end

  always_ff @(posedge clk)
    err <= !rst && ((mul_at[P_BITS] && (rec || (finish && !by_row && !alt))) || (res_at[Y_BITS] && use_res) || (vy_at[Y_BITS] && vy_re) ||
      (beyond && word));

  // ---- Lane 0.
  localparam AT = SHARED ? 1 : 2;
  wire [R_BITS-1:0] row_s = row_d[(AT-1)*R_BITS +: R_BITS];
  wire [R_BITS-1:0] row_bi = bias_row_d[(AT-1)*R_BITS +: R_BITS];
  assign ctl = {v_d[2], inject_d[2], own_d[2], rec_d[AT], row_s, mul_c, shift_c, y_re, y_at, y_byte, v_d[BI+2], rec_bi_d[AT], row_bi, bias_c,
                finish_d[WR], w_valid, w_at};

  // ---- Whether anything is on its way.
  logic [Q_BITS-1:0] tiles_left, values_left;
  assign quiet = tiles_left == 0 && values_left == 0;
  always_ff @(posedge clk) begin
    tiles_left <= rst ? '0 : tile ? Q_BITS'(QUIET) : tiles_left - Q_BITS'(tiles_left != 0);
    values_left <= rst ? '0 : v ? Q_BITS'(TAIL) : values_left - Q_BITS'(values_left != 0);
  end
endmodule
