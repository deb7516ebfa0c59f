// fx_vector_lane: a lane's part of Vector. It makes the operand of the scale path, acc, from elements x of X and y of Y:
// x itself, x·y, Σ gate·x, or the normalised x. One multiplier does all of it, and the products of a row's statistics,
// too: an element d·r is (n·x − Σx)·r = x·(n·r) − Σx·r, so that one product an element is enough (isa.Norm).
//
// Control (lane_i) comes from the lane before, from fx_vector for lane 0, and goes on to the next a cycle later. x belongs
// to a code (fx_vector_codes.sv) that comes in the same cycle, y has to be there a cycle later; acc is the result
// FX_VECTOR_LATENCY + 1 cycles later. A gate travels in the same way, with the number of lanes that it has still to go;
// the lane that it is for keeps it. count, mean and eps hold while statistics are taken.
`default_nettype none
`include "fx_config.svh"
`include "fx_vector_codes.sv"

module fx_vector_lane #(
  parameter NORMS = `FX_NORMS,
  parameter ROUTER = `FX_ROUTER,
  parameter SERIAL_MUL = `FX_SERIAL_MUL,
  parameter WORD_BYTES = `FX_WORD_BYTES,
  localparam AW = NORMS ? 31 : ROUTER ? 17 : 8,  // widths of the operands
  localparam BW = NORMS ? 18 : 8,
  localparam SW = NORMS ? 40 : 32                // of the sum
) (
  input  wire               clk,
  input  wire  [31:0]       lane_i,
  output wire  [31:0]       lane_o,
  input  wire  [12:0]       count,     // elements of a row
  input  wire               mean,      // LayerNorm: the mean is taken off
  input  wire  [31:0]       eps,
  input  wire signed [7:0]  x_i,
  input  wire signed [7:0]  y,
  output wire signed [31:0] acc
);
  // The code, whether it begins a sum (SCALE: which product), of COMBINE the gate's rank; a gate, how far it goes, its rank.
  logic [3:0] op;
  logic first;
  logic [1:0] rank;
  logic gate_valid;
  logic [5:0] gate_hops;
  logic [1:0] gate_rank;
  logic [15:0] gate_value;
  wire gate_mine = gate_valid && gate_hops == 0;
  assign lane_o = {op, first, rank, gate_valid && !gate_mine, gate_hops - 6'd1, gate_rank, gate_value};
  logic signed [7:0] x;
  always_ff @(posedge clk) begin
    x <= x_i;
    {op, first, rank, gate_valid, gate_hops, gate_rank, gate_value} <= lane_i;
  end

  generate
    if (SERIAL_MUL) begin : serial
      // The product bit by bit, lowest first: its upper part, and below it the bits that are done, then those of the other
      // factor that are still to come. Elements come every tenth cycle at most.
      logic signed [7:0] a;
      logic signed [8:0] high;
      logic [7:0] low_bits;
      logic [2:0] bit_at;
      wire highest = bit_at == 3'd7;         // it counts negatively
      wire signed [9:0] part = !low_bits[0] ? 10'sd0 : 10'($signed(a ^ {8{highest}}));
      wire signed [9:0] next = 10'(high) + part + $signed({9'b0, low_bits[0] && highest});
      wire take = op == `FX_V_AFFINE || op == `FX_V_MUL;
      always_ff @(posedge clk) begin
        bit_at <= take ? 3'd0 : bit_at + 3'd1;
        if (take) {a, high, low_bits} <= {x, 9'b0, op == `FX_V_MUL ? y : 8'd1};
        else {high, low_bits} <= {next, low_bits[7:1]};
      end
      assign acc = 32'($signed({high[7:0], low_bits}));
    end else begin : whole
      // operands and sum; Σx and r of the norm
      logic signed [AW-1:0] a;
      wire  signed [AW-1:0] p_a;
      logic signed [BW-1:0] b;
      logic signed [SW-1:0] sum, with_sum;
      wire  signed [SW-1:0] total;
      logic [3:0] op1, op2, op3;
      logic first1, first2, first3;
      wire  signed [19:0] s;
      wire [16:0] r;

      // the gates of this lane's token, and the sums of a word's elements while its slots are added
      wire [15:0] gate;
      wire signed [27:0] part;
      if (ROUTER) begin : gates
        logic [15:0] kept [0:3];
        always_ff @(posedge clk) if (gate_mine) kept[gate_rank] <= gate_value;
        assign gate = kept[rank];

        logic signed [27:0] parts [0:WORD_BYTES-1];
        logic signed [27:0] kept_part;
        logic [$clog2(WORD_BYTES)-1:0] e2, e3;
        always_ff @(posedge clk) begin
          e2 <= op2 == `FX_V_COMBINE ? e2 + 1'b1 : 0;
          e3 <= e2;
          kept_part <= parts[e2];
          if (op3 == `FX_V_COMBINE) parts[e3] <= total[27:0];
        end
        assign part = kept_part;
      end else begin : no_gates
        assign gate = 0;
        assign part = 0;
      end

      // 0: operands
      wire signed [BW-1:0] n = BW'($signed({1'b0, count}));
      wire signed [BW-1:0] r_all = BW'($signed({1'b0, r}));
      wire signed [BW-1:0] s_low = BW'($signed({1'b0, s[9:0]}));
      wire signed [BW-1:0] s_high = BW'($signed(s[19:10]));
      logic signed [AW-1:0] a_next;
      logic signed [BW-1:0] b_next;
      always_comb begin
        a_next = AW'(x);
        b_next = BW'(x);
        case (op)
          `FX_V_AFFINE:  a_next = 1;
          `FX_V_MUL:     a_next = AW'(y);
          `FX_V_COMBINE: a_next = AW'($signed({1'b0, gate}));
          default: ;
        endcase
        if (NORMS) case (op)
          `FX_V_NONE, `FX_V_ELEMENT: a_next = a;
          `FX_V_HOLD:     a_next = p_a;
          `FX_V_VAR_N:    begin a_next = AW'($signed({1'b0, sum[26:0]})); b_next = n; end
          `FX_V_VAR_LOW:  begin a_next = AW'(s); b_next = -s_low; end
          `FX_V_VAR_HIGH: begin a_next = AW'(s) <<< 10; b_next = -s_high; end
          `FX_V_SCALE: begin
            a_next = first ? AW'(r_all) : AW'(s);
            b_next = first ? n : -r_all;
          end
          default: ;
        endcase
      end

      wire signed [SW-1:0] p;
      always_ff @(posedge clk) begin
        a <= a_next;
        b <= b_next;
        {op3, op2, op1} <= {op2, op1, op};
        {first3, first2, first1} <= {first2, first1, first};
      end

      // 1, 2: the product, in two parts if it is wider than one multiplier
      if (NORMS) begin : wide
        logic signed [35:0] low;
        logic signed [31:0] high;
        logic signed [SW-1:0] product;
        always_ff @(posedge clk) begin
          low <= $signed({1'b0, a[16:0]}) * b;
          high <= $signed(a[30:17]) * b;
          product <= SW'(low) + (SW'(high) <<< 17);
        end
        assign p = product;
        assign p_a = product[30:0];
      end else begin : narrow
        logic signed [AW+BW-1:0] product, product2;
        always_ff @(posedge clk) begin
          product <= a * b;
          product2 <= product;
        end
        assign p = SW'(product2);
        assign p_a = 0;
      end

      // 3: the sum
      wire stat = op3 == `FX_V_STAT, combine = op3 == `FX_V_COMBINE, var_n = op3 == `FX_V_VAR_N;
      wire adds = op3 == `FX_V_VAR_LOW || op3 == `FX_V_VAR_HIGH;
      wire shifts = op3 == `FX_V_SCALE && !first3;
      always_comb begin
        with_sum = 0;
        if (ROUTER && combine && !first3) with_sum = SW'(part);
        if (NORMS && (adds || op3 == `FX_V_ELEMENT || stat && !first3)) with_sum = sum;
        if (NORMS && var_n) with_sum = SW'($signed({1'b0, eps}));
      end
      assign total = p + with_sum;
      logic signed [SW-1:0] t;
      always_ff @(posedge clk) begin
        t <= total;
        if (stat || var_n || adds || shifts) sum <= total;
      end

      if (NORMS) begin : norm
        // Σx, from the same elements as the sum of x²
        logic signed [19:0] linear;
        always_ff @(posedge clk)
          if (op == `FX_V_STAT) linear <= (first ? 20'sd0 : linear) + (mean ? 20'(x) : 20'sd0);
        assign s = linear;

        wire [4:0] shift;
        fx_norm rsqrt (.clk(clk), .op(op), .v(sum), .r(r), .shift(shift));

        // 4 to 6: the element's shift, by eights and by ones, and saturation to 20 bits
        logic element4, element5, element6;
        logic signed [39:0] t5, t6;
        logic signed [31:0] t7;
        wire [4:0] by = element4 ? shift : 5'd0;
        logic [2:0] by5;
        wire fits = &t6[39:19] || ~|t6[39:19];
        always_ff @(posedge clk) begin
          {element6, element5, element4} <= {element5, element4, op3 == `FX_V_ELEMENT};
          t5 <= t >>> {by[4:3], 3'b0};
          by5 <= by[2:0];
          t6 <= t5 >>> by5;
          t7 <= element6 && !fits ? {{13{t6[39]}}, {19{~t6[39]}}} : t6[31:0];
        end
        assign acc = t7;
      end else begin : plain
        assign s = 0;
        assign r = 0;
        assign acc = t;
      end
    end
  endgenerate
endmodule
`default_nettype wire
