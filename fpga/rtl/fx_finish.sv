// fx_finish: an int8 or int16 result of t, of isa.Finish: with the residual, rounded, ReLU, zero point, saturated, by the table.
//
// t comes in cycle T, at most every cycle, with SERIAL_MUL every fourth; the residual's element y in T-2 (SERIAL_MUL: T-7, with
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
  logic signed [24:0] product;
  generate
    if (SERIAL_MUL) begin : serial
      logic signed [7:0] x;
      logic [15:0] m;
      logic signed [12:0] partial;
      logic top, top_partial;
      always_ff @(posedge clk) begin
        if (y_load) x <= y;
        m <= y_load ? res_mul : {m[11:0], 4'b0};
        top <= y_load;
        top_partial <= top;
        partial <= x * $signed({1'b0, m[15:12]});
        product <= (top_partial ? 25'sd0 : product <<< 4) + 25'(partial);
      end
    end else begin : whole
      always_ff @(posedge clk) product <= y * $signed({1'b0, res_mul});
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
