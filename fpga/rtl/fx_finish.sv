// fx_finish: an int8 or int16 result of t, of isa.Finish: with the residual, rounded, ReLU, zero point, saturated, by the table.
//
// t comes in cycle T, at most every cycle, with SERIAL_MUL every 17th; the residual's element y in T-2 (SERIAL_MUL: T-10, with
// y_load). The result is there in T+4 and stays for a cycle. relu, wide, use_table, zero and res_mul hold meanwhile.
`default_nettype none
module fx_finish #(
  parameter TABLES = 1,
  parameter SERIAL_MUL = 0,
  parameter TABLE_BITS = TABLES > 1 ? $clog2(TABLES) : 1
) (
  input  wire                   clk,
  input  wire signed [24:0]     t,
  input  wire signed [7:0]      y,
  input  wire                   y_load,
  input  wire                   relu,
  input  wire                   wide,
  input  wire signed [7:0]      zero,
  input  wire        [15:0]     res_mul,
  input  wire                   use_table,
  input  wire  [TABLE_BITS-1:0] table_at,
  // Writing of tables.
  input  wire                   tw_valid,
  input  wire  [TABLE_BITS+7:0] tw_at,
  input  wire  [7:0]            tw_data,
  output logic [15:0]           result
);
  // The residual's product, of 25 bits, then what t gets: it over 16, and one half of a step.
  wire signed [24:0] product;
  generate
    if (SERIAL_MUL) begin : serial
      // One bit of y a cycle, the lowest first, the highest negative.
      logic [7:0] x;
      logic signed [16:0] high;
      logic [7:0] low;
      logic [2:0] bits;
      wire sign = &bits;
      wire [16:0] addend = {17{x[0]}} & ({1'b0, res_mul} ^ {17{sign}});
      wire signed [17:0] sum = 18'(high) + 18'($signed(addend)) + 18'(x[0] && sign);
      always_ff @(posedge clk) begin
        x <= y_load ? y : x >> 1;
        bits <= y_load ? 3'd0 : bits + 3'd1;
        if (y_load) high <= '0;
        else high <= sum[17:1];
        low <= {sum[0], low[7:1]};
      end
      assign product = {high, low};
    end else begin : whole
      logic signed [24:0] whole_product;
      always_ff @(posedge clk) whole_product <= y * $signed({1'b0, res_mul});
      assign product = whole_product;
    end
  endgenerate

  logic signed [21:0] more;
  logic signed [25:0] sum;
  logic signed [18:0] shifted;
  logic [15:0] clipped, clipped_1;
  wire signed [17:0] rounded = sum[25:8];
  wire high = wide ? !(&shifted[18:15] || ~|shifted[18:15]) : !(&shifted[18:7] || ~|shifted[18:7]);
  always_ff @(posedge clk) begin
    more <= 22'($signed(product[24:4])) + 22'sd128;
    sum <= 26'(t) + 26'(more);
    shifted <= ((relu && sum[25]) ? 19'sd0 : 19'(rounded)) + 19'(zero);
    clipped <= !high ? shifted[15:0] : wide ? {shifted[18], {15{~shifted[18]}}} : {8'b0, shifted[18], {7{~shifted[18]}}};
    clipped_1 <= clipped;
  end

  generate
    if (TABLES > 0) begin : tables
      wire [7:0] entry;
      fx_ram #(.WIDTH(8), .DEPTH(256 << TABLE_BITS)) ram (
        .clk(clk), .we(tw_valid), .waddr(tw_at), .wdata(tw_data), .raddr({table_at, clipped[7:0]}), .rdata(entry));
      assign result = use_table ? {8'b0, entry} : clipped_1;
    end else begin : plain
      assign result = clipped_1;
    end
  endgenerate
endmodule
