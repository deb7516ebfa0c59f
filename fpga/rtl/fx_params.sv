// fx_params: the parameter memory, records of 8 bytes (isa.Record). Words of WORD_BYTES are written, from record 0 on; a record is read in two parts, at times
// of their own, each one cycle after its address.
`default_nettype none
module fx_params #(
  parameter PARAMS = 256,
  parameter WORD_BYTES = 8,
  localparam P_BITS = PARAMS > 1 ? $clog2(PARAMS) : 1
) (
  input  wire                     clk,
  input  wire                     we,
  input  wire  [15:0]             waddr,
  input  wire  [8*WORD_BYTES-1:0] wdata,
  input  wire  [P_BITS-1:0]       mul_at,
  output wire  [15:0]             mul,
  output wire  [5:0]              shift,
  input  wire  [P_BITS-1:0]       bias_at,
  output wire  [23:0]             bias
);
  // A bank holds every second record if a word is two; parts are 16 bits of a record: bias, bias, mul, shift.
  localparam BANKS = WORD_BYTES == 16 && PARAMS > 1 ? 2 : 1;
  localparam DEPTH = PARAMS / BANKS;
  localparam A_BITS = DEPTH > 1 ? $clog2(DEPTH) : 1;
  localparam BEATS = WORD_BYTES >= 8 ? 1 : 8 / WORD_BYTES;
  localparam LG_BEATS = $clog2(BEATS);
  wire [BANKS*64-1:0] all;
  genvar b, p;
  generate
    for (b = 0; b < BANKS; b = b + 1) begin : bank
      for (p = 0; p < 4; p = p + 1) begin : part
        localparam BEAT = (2 * p / WORD_BYTES) % BEATS;
        localparam WIDTH = p == 1 ? 8 : p == 3 ? 6 : 16;
        localparam FROM = 64 * b + (16 * p) % (8 * WORD_BYTES > 64 ? 64 : 8 * WORD_BYTES);
        wire [P_BITS-1:0] at = p < 2 ? bias_at : mul_at;
        wire [WIDTH-1:0] data;
        fx_ram #(.WIDTH(WIDTH), .DEPTH(DEPTH)) ram (
          .clk(clk), .we(we && (waddr & 16'(BEATS - 1)) == 16'(BEAT)), .waddr(A_BITS'(waddr >> LG_BEATS)),
          .wdata(wdata[FROM +: WIDTH]), .raddr(A_BITS'(at >> (BANKS - 1))), .rdata(data));
        assign all[64*b+16*p +: 16] = 16'(data);
      end
    end
    if (BANKS == 2) begin : select
      logic mul_bank, bias_bank;
      always_ff @(posedge clk) {mul_bank, bias_bank} <= {mul_at[0], bias_at[0]};
      assign {shift, mul} = mul_bank ? all[64+32 +: 22] : all[32 +: 22];
      assign bias = bias_bank ? all[64 +: 24] : all[0 +: 24];
    end else begin : one
      assign {shift, mul} = all[32 +: 22];
      assign bias = all[0 +: 24];
    end
  endgenerate
endmodule
