// The queues of the three engines (0: LOAD, 1: EXEC, 2: STORE), QUEUE_DEPTH descriptors each in one memory, beat by
// beat as they came. A descriptor that is whole goes from there into the register of its engine, to EXEC by way of a
// spare register, so that one follows the other at once. Beside them stands the number of each descriptor that is not
// done yet, for errors: an engine's oldest one is to blame.
`include "fx_config.svh"
`default_nettype none
module fx_queues #(
  parameter int WORD_BYTES = `FX_WORD_BYTES,
  parameter int DEPTH = `FX_QUEUE_DEPTH,
  parameter int NUMBER_BITS = 32,
  parameter int SPARE = 1,  // 0: no spare register
  parameter int NARROW = 0, // addresses are held in 9 bits: see below
  localparam int BEATS = 32 / WORD_BYTES,
  localparam int LG_BEATS = $clog2(BEATS)
) (
  input  wire                     clk,
  input  wire                     rst,
  // From fetch: beats of a descriptor, then `commit` with or after the last.
  output logic [2:0]              room,
  input  wire                     put,
  input  wire  [1:0]              put_engine,
  input  wire  [LG_BEATS-1:0]     put_beat,
  input  wire  [8*WORD_BYTES-1:0] put_data,
  input  wire                     commit,
  input  wire  [NUMBER_BITS-1:0]  number,
  // To the engines' registers.
  input  wire  [2:0]              held,
  output logic [2:0]              loaded,
  output logic [255:0]            cmd_load,
  output logic [255:0]            cmd_exec,
  output logic [255:0]            cmd_store,
  output logic [2:0]              empty,       // none waits in memory or on the way to the register
  // The number of an engine's oldest descriptor, a cycle after the engine is named.
  input  wire  [2:0]              done,
  input  wire  [1:0]              blame,
  output logic [NUMBER_BITS-1:0]  blamed
);
  localparam int LG = $clog2(DEPTH), BITS = 8 * WORD_BYTES;
  (* no_rw_check *)
  logic [BITS-1:0] store [0:4*DEPTH*BEATS-1];
  (* no_rw_check *)
  logic [NUMBER_BITS-1:0] numbers [0:8*DEPTH-1];
  logic [LG-1:0] write_slot [0:2], read_slot [0:2];
  logic [LG:0]   count [0:2], number_at [0:2], oldest [0:2];  // numbers: twice the queue's depth

  // The descriptor on its way to a register.
  logic moving, arriving;
  logic [1:0] engine, arriving_engine;
  logic [LG_BEATS-1:0] beat, arriving_beat;
  logic [BITS-1:0] read_data;
  logic [2:0] ready;
  logic [1:0] choice;
  logic [255:0] spare;
  logic spare_full;
  wire last = beat == LG_BEATS'(BEATS - 1);
  wire arrived = arriving && arriving_beat == LG_BEATS'(BEATS - 1);
  always_comb for (int e = 0; e < 3; e++) begin
    room[e] = count[e] != (LG+1)'(DEPTH);
    ready[e] = count[e] != 0 && !held[e] && !(arriving && arriving_engine == 2'(e));
    loaded[e] = arrived && arriving_engine == 2'(e);
    empty[e] = count[e] == 0 && !(arriving && arriving_engine == 2'(e));
    if (e == 1 && SPARE != 0) begin
      ready[e] = count[e] != 0 && !spare_full && !(arriving && arriving_engine == 2'(e));
      loaded[e] = spare_full && !held[e];
      empty[e] = empty[e] && !spare_full;
    end
  end
  assign choice = ready[1] ? 2'd1 : ready[0] ? 2'd0 : 2'd2;

  function automatic logic [255:0] fill(input logic [255:0] old, input logic [LG_BEATS-1:0] at,
                                        input logic [BITS-1:0] value);
    for (int b = 0; b < BEATS; b++) fill[b*BITS +: BITS] = at == LG_BEATS'(b) ? value : old[b*BITS +: BITS];
  endfunction

  // With NARROW (words of two bytes, scratchpads of 256 words, memory of 64 KiB; no router, norms or attention) the
  // registers hold of an address in a scratchpad 9 bits, the highest for all above, and of the upper half of an
  // address or stride in memory one bit, whether it is zero. The other bits go as they are, and nobody asks for these.
  function automatic logic in_scratch(input logic exec, input int half);
    in_scratch = half == 8 || half == 9 || (exec && ((half >= 2 && half <= 5) || (half >= 10 && half <= 12)));
  endfunction
  function automatic logic in_memory(input logic exec, input int half);
    in_memory = !exec && (half == 3 || half == 5);
  endfunction
  function automatic logic [255:0] used(input logic exec);
    for (int h = 0; h < 16; h++)
      used[16*h +: 16] = NARROW == 0 ? 16'hffff : in_scratch(exec, h) ? 16'h01ff : in_memory(exec, h) ? 16'h0001 : 16'hffff;
  endfunction
  localparam logic [255:0] MOVE_USED = used(1'b0), EXEC_USED = used(1'b1);
  logic [255:0] load, exec, stored;
  assign cmd_load = load & MOVE_USED;
  assign cmd_exec = exec & EXEC_USED;
  assign cmd_store = stored & MOVE_USED;
  logic [BITS-1:0] put_bits;
  generate
    if (NARROW != 0) begin : narrow
      wire to_exec = put_engine == 2'd1;
      always_comb begin
        put_bits = put_data;
        for (int h = 0; h < 16; h++)
          if (put_beat == LG_BEATS'(h)) begin
            if (in_scratch(to_exec, h)) put_bits[8] = |put_data[15:8];
            if (in_memory(to_exec, h)) put_bits[0] = |put_data;
          end
      end
    end else begin : whole
      assign put_bits = put_data;
    end
  endgenerate

  always_ff @(posedge clk) begin
    if (put) store[{put_engine, write_slot[put_engine], put_beat}] <= put_bits;
    read_data <= store[{engine, read_slot[engine], beat}];
    if (commit) numbers[{put_engine, number_at[put_engine]}] <= number;
    blamed <= numbers[{blame, oldest[blame]}];

    if (!moving) begin
      moving <= ready != 0;
      engine <= choice;
      beat <= '0;
    end else begin
      beat <= beat + 1'b1;
      if (last) moving <= 1'b0;
    end
    arriving <= moving;
    arriving_engine <= engine;
    arriving_beat <= beat;
    if (arriving && arriving_engine == 2'd0) load <= fill(load, arriving_beat, read_data);
    if (arriving && arriving_engine == 2'd1)
      if (SPARE != 0) spare <= fill(spare, arriving_beat, read_data);
      else exec <= fill(exec, arriving_beat, read_data);
    if (SPARE != 0 && loaded[1]) exec <= spare;
    spare_full <= SPARE != 0 && ((spare_full && held[1]) || (arrived && arriving_engine == 2'd1));
    if (arriving && arriving_engine == 2'd2) stored <= fill(stored, arriving_beat, read_data);
    for (int e = 0; e < 3; e++) begin
      write_slot[e] <= write_slot[e] + LG'(commit && put_engine == 2'(e));
      number_at[e] <= number_at[e] + (LG+1)'(commit && put_engine == 2'(e));
      read_slot[e] <= read_slot[e] + LG'(moving && last && engine == 2'(e));
      count[e] <= count[e] + (LG+1)'(commit && put_engine == 2'(e)) - (LG+1)'(moving && last && engine == 2'(e));
      oldest[e] <= oldest[e] + (LG+1)'(done[e]);
    end
    if (rst) begin
      moving <= 1'b0;
      arriving <= 1'b0;
      spare_full <= 1'b0;
      for (int e = 0; e < 3; e++) begin
        write_slot[e] <= '0;
        read_slot[e] <= '0;
        count[e] <= '0;
        number_at[e] <= '0;
        oldest[e] <= '0;
      end
    end
  end
endmodule
