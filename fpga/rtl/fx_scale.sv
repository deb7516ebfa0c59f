// fx_scale: t = sat24(acc·mul >> shift) + bias, of isa.Record.Scale.
//
// acc comes with `load` in cycle S, at most every cycle, with SERIAL_MUL every 17th; mul and shift with `load_mul` in S or any time before, and stay
// until the next load_mul. The product is there in S+PV, PV being 3 or with SERIAL_MUL 17, t in S+PV+5; bias has to be there in S+PV+4.
`default_nettype none
module fx_scale #(
  parameter ACC_BITS = 32,
  parameter MUL_BITS = 17,
  parameter SERIAL_MUL = 0
) (
  input  wire                       clk,
  input  wire                       load,
  input  wire                       load_mul,
  input  wire signed [ACC_BITS-1:0] acc,
  input  wire signed [MUL_BITS-1:0] mul,
  input  wire        [5:0]          shift,
  input  wire signed [23:0]         bias,
  output logic signed [24:0]        t
);
  localparam P = ACC_BITS + MUL_BITS;
  localparam PX = P < 64 ? 64 : P;
  wire signed [P-1:0] product;
  logic [5:0] shift_p;   // that of the product

  generate
    if (SERIAL_MUL) begin : serial
      // One bit of mul a cycle, the lowest first, the highest negative. After 16 cycles m has turned round.
      logic signed [ACC_BITS-1:0] x;
      logic signed [ACC_BITS:0] high;
      logic [15:0] m, low;
      logic [3:0] bits;
      logic busy;
      wire sign = &bits;
      wire [ACC_BITS-1:0] addend = {ACC_BITS{m[0]}} & (x ^ {ACC_BITS{sign}});
      wire signed [ACC_BITS:0] sum = high + (ACC_BITS+1)'($signed(addend)) + (ACC_BITS+1)'(m[0] && sign);
      always_ff @(posedge clk) begin
        if (load) x <= acc;
        if (load_mul) m <= mul[15:0];
        else if (busy) m <= {m[0], m[15:1]};
        if (load) {busy, bits} <= 5'b10000;
        else if (busy) {busy, bits} <= {!sign, bits + 4'd1};
        if (load) high <= '0;
        else if (busy) high <= sum >>> 1;
        if (busy) low <= {sum[0], low[15:1]};
        if (load_mul) shift_p <= shift;
      end
      assign product = {high[ACC_BITS-1:0], low};
    end else begin : whole
      // Two multipliers of 18 bits: the low 17 bits of acc and the rest.
      logic signed [ACC_BITS-1:0] x;
      logic signed [MUL_BITS-1:0] m;
      logic signed [MUL_BITS+17:0] low;
      logic signed [MUL_BITS+ACC_BITS-18:0] high;
      logic signed [P-1:0] whole_product;
      logic [5:0] shift_1, shift_2;
      assign product = whole_product;
      always_ff @(posedge clk) begin
        x <= acc;
        if (load_mul) m <= mul;
        low <= m * $signed({1'b0, x[16:0]});
        high <= m * $signed(x[ACC_BITS-1:17]);
        whole_product <= P'(low) + {high, 17'b0};
        if (load_mul) shift_1 <= shift;
        {shift_p, shift_2} <= {shift_2, shift_1};
      end
    end
  endgenerate

  // Shift by 16s, by 4s, by ones. Bits above those that the following shifts can bring down to the 24 count only in
  // whether they all are like the sign: if not, the value saturates.
  wire signed [PX-1:0] wide = PX'(product);
  logic [38:0] s16;
  logic [26:0] s4;
  logic [23:0] s1, s;
  logic over16, over4, over1, sign16, sign4, sign1;
  logic [3:0] shift_16;
  logic [1:0] shift_4;
  wire signed [PX-1:0] by16 = wide >>> {shift_p[5:4], 4'b0};
  wire signed [39:0] by4 = $signed({sign16, s16}) >>> {shift_16[3:2], 2'b0};
  wire signed [27:0] by1 = $signed({sign4, s4}) >>> shift_4;
  always_ff @(posedge clk) begin
    s16 <= by16[38:0];
    sign16 <= product[P-1];
    over16 <= by16[PX-1:38] != {(PX-38){product[P-1]}};
    shift_16 <= shift_p[3:0];

    s4 <= by4[26:0];
    sign4 <= sign16;
    over4 <= over16 || by4[39:26] != {14{sign16}};
    shift_4 <= shift_16[1:0];

    s1 <= by1[23:0];
    sign1 <= sign4;
    over1 <= over4 || by1[27:23] != {5{sign4}};

    s <= over1 ? {sign1, {23{~sign1}}} : s1;
    t <= {s[23], s} + {bias[23], bias};
  end
endmodule
