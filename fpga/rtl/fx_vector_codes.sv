// What a lane's vector unit does in a cycle: the codes that fx_vector sends from lane to lane. See fx_vector_lane.
`ifndef FX_VECTOR_CODES
`define FX_VECTOR_CODES
`define FX_V_NONE      4'd0
`define FX_V_AFFINE    4'd1   // result: x
`define FX_V_MUL       4'd2   // result: x·y
`define FX_V_COMBINE   4'd3   // sum of gate·x, begun anew with first; the result is that of the last rank
`define FX_V_STAT      4'd4   // sums of x and x², begun anew with first
`define FX_V_ELEMENT   4'd5   // result: the normalised x
`define FX_V_VAR_N     4'd6   // n·Σx² + eps
`define FX_V_VAR_LOW   4'd7   // … − Σx · the low half of Σx
`define FX_V_VAR_HIGH  4'd8   // … − Σx · its high half
`define FX_V_LOAD      4'd9   // the sum goes to the root
`define FX_V_NORMALISE 4'd10  // steps of fx_norm
`define FX_V_ROOT      4'd11
`define FX_V_INVERT    4'd12
`define FX_V_DIVIDE    4'd13
`define FX_V_SCALE     4'd14  // with first n·r and keep it; else −Σx·r, which stays in the sum
`define FX_V_HOLD      4'd15  // n·r becomes the factor of FX_V_ELEMENT

// Steps of each kind, and the cycles from an element of a lane to its result.
`define FX_NORMALISE_STEPS 19
`define FX_ROOT_STEPS      20
`define FX_DIVIDE_STEPS    17
`define FX_VECTOR_LATENCY  (`FX_SERIAL_MUL ? 9 : `FX_NORMS ? 7 : 4)
`endif
