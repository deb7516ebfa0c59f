// 2^-(t/1024) as a probability of 17 bits, for t >= 0: isa.Exp2, bit by bit. 64 entries between two powers of two and
// straight lines between them; then a shift that rounds half up. One value a cycle, LATENCY cycles later, without
// a multiplier: the four bits between two entries choose multiples of the slope.
`default_nettype none
module fx_exp2 #(
  parameter T_BITS = 21  // width of t, at least 15
) (
  input  wire               clk,
  input  wire  [T_BITS-1:0] t,
  input  wire               zero,  // the value is 0, whatever t is
  output logic [16:0]       p      // of t and zero six cycles before
);
  // The entry and the way to the next one.
  logic [27:0] entry;
  always_comb begin
    case (t[9:4])
      6'd0: entry = {17'd131071, 11'd1411}; 6'd1: entry = {17'd129660, 11'd1397};
      6'd2: entry = {17'd128263, 11'd1381}; 6'd3: entry = {17'd126882, 11'd1367};
      6'd4: entry = {17'd125515, 11'd1352}; 6'd5: entry = {17'd124163, 11'd1338};
      6'd6: entry = {17'd122825, 11'd1323}; 6'd7: entry = {17'd121502, 11'd1308};
      6'd8: entry = {17'd120194, 11'd1295}; 6'd9: entry = {17'd118899, 11'd1281};
      6'd10: entry = {17'd117618, 11'd1267}; 6'd11: entry = {17'd116351, 11'd1253};
      6'd12: entry = {17'd115098, 11'd1240}; 6'd13: entry = {17'd113858, 11'd1227};
      6'd14: entry = {17'd112631, 11'd1213}; 6'd15: entry = {17'd111418, 11'd1200};
      6'd16: entry = {17'd110218, 11'd1187}; 6'd17: entry = {17'd109031, 11'd1175};
      6'd18: entry = {17'd107856, 11'd1162}; 6'd19: entry = {17'd106694, 11'd1149};
      6'd20: entry = {17'd105545, 11'd1137}; 6'd21: entry = {17'd104408, 11'd1125};
      6'd22: entry = {17'd103283, 11'd1112}; 6'd23: entry = {17'd102171, 11'd1101};
      6'd24: entry = {17'd101070, 11'd1088}; 6'd25: entry = {17'd99982, 11'd1077};
      6'd26: entry = {17'd98905, 11'd1066}; 6'd27: entry = {17'd97839, 11'd1054};
      6'd28: entry = {17'd96785, 11'd1042}; 6'd29: entry = {17'd95743, 11'd1032};
      6'd30: entry = {17'd94711, 11'd1020}; 6'd31: entry = {17'd93691, 11'd1009};
      6'd32: entry = {17'd92682, 11'd998}; 6'd33: entry = {17'd91684, 11'd988};
      6'd34: entry = {17'd90696, 11'd977}; 6'd35: entry = {17'd89719, 11'd967};
      6'd36: entry = {17'd88752, 11'd956}; 6'd37: entry = {17'd87796, 11'd945};
      6'd38: entry = {17'd86851, 11'd936}; 6'd39: entry = {17'd85915, 11'd925};
      6'd40: entry = {17'd84990, 11'd916}; 6'd41: entry = {17'd84074, 11'd905};
      6'd42: entry = {17'd83169, 11'd896}; 6'd43: entry = {17'd82273, 11'd887};
      6'd44: entry = {17'd81386, 11'd876}; 6'd45: entry = {17'd80510, 11'd868};
      6'd46: entry = {17'd79642, 11'd857}; 6'd47: entry = {17'd78785, 11'd849};
      6'd48: entry = {17'd77936, 11'd840}; 6'd49: entry = {17'd77096, 11'd830};
      6'd50: entry = {17'd76266, 11'd822}; 6'd51: entry = {17'd75444, 11'd812};
      6'd52: entry = {17'd74632, 11'd804}; 6'd53: entry = {17'd73828, 11'd796};
      6'd54: entry = {17'd73032, 11'd786}; 6'd55: entry = {17'd72246, 11'd778};
      6'd56: entry = {17'd71468, 11'd770}; 6'd57: entry = {17'd70698, 11'd762};
      6'd58: entry = {17'd69936, 11'd753}; 6'd59: entry = {17'd69183, 11'd745};
      6'd60: entry = {17'd68438, 11'd738}; 6'd61: entry = {17'd67700, 11'd729};
      6'd62: entry = {17'd66971, 11'd721}; 6'd63: entry = {17'd66250, 11'd714};
    endcase
  end

  // Whole powers of two from 32 on give zero as 18 does.
  wire over = |t[T_BITS-1:15];
  logic [16:0] e1, e2, e3, e4;
  logic [10:0] slope;
  logic [3:0]  f;
  logic [4:0]  whole1, whole2, whole3, whole4;
  logic [2:0]  whole5;
  logic [12:0] low, high;
  logic [10:0] line;  // slope * f >> 4
  logic        zero1, zero2, zero3, zero4, zero5;
  logic [17:0] part;  // one bit of fraction
  wire  [17:0] shifted = part >> whole5;

  always_ff @(posedge clk) begin
    {e1, slope} <= entry;
    f <= t[3:0];
    whole1 <= t[14:10];
    zero1 <= zero | over;

    low <= (f[0] ? {2'b00, slope} : 13'd0) + (f[1] ? {1'b0, slope, 1'b0} : 13'd0);
    high <= (f[2] ? {2'b00, slope} : 13'd0) + (f[3] ? {1'b0, slope, 1'b0} : 13'd0);
    {e2, whole2, zero2} <= {e1, whole1, zero1};

    line <= 11'(({2'b00, low} + {high, 2'b00}) >> 4);
    {e3, whole3, zero3} <= {e2, whole2, zero2};

    e4 <= e3 - {6'd0, line};
    {whole4, zero4} <= {whole3, zero3};

    part <= whole4[4] ? {1'b0, e4} >> {whole4[3], 3'b000} >> 15 : {e4, 1'b0} >> {whole4[3], 3'b000};
    {whole5, zero5} <= {whole4[2:0], zero4};

    p <= zero5 ? 17'd0 : 17'((shifted + 18'd1) >> 1);
  end
endmodule
`default_nettype wire
