// The end of an engine's queue: holds its next descriptor, has its semaphores taken, gives it to the engine, and posts
// when the engine says that it is done. The engine may have UNDER descriptors under way; with UNDER = 1 the descriptor
// stays in cmd until it is done, so that neither its posts nor the engine's fields need registers of their own.
`include "fx_config.svh"
`default_nettype none
module fx_issue #(
  parameter int UNDER = 4  // 1, or a power of two
) (
  input  wire          clk,
  input  wire          rst,
  input  wire          loaded,     // cmd has been filled
  input  wire  [255:0] cmd,
  output logic         held,       // cmd is in use: it must not be filled
  output logic         want,       // semaphores, for wait_mask
  output logic [7:0]   wait_mask,
  input  wire          take,
  output logic         cmd_valid,
  input  wire          cmd_ready,
  input  wire          done,
  output logic [7:0]   post_mask,  // with done
  output logic         busy        // a descriptor is under way
);
  wire taken = want && take;
  assign wait_mask = cmd[`FX_LOAD_WAIT];
  always_ff @(posedge clk) cmd_valid <= !rst && (taken || (cmd_valid && !cmd_ready));
  generate
    if (UNDER == 1) begin : one
      assign want = held && !busy;
      assign post_mask = cmd[`FX_LOAD_POST];
      always_ff @(posedge clk) begin
        held <= !rst && (loaded || (held && !done));
        busy <= !rst && (taken || (busy && !done));
      end
    end else begin : many
      localparam int LG = $clog2(UNDER);
      logic [7:0] posts [0:UNDER-1];
      logic [LG-1:0] first, next;
      logic [LG:0] count;
      assign want = held && !cmd_valid && count != (LG+1)'(UNDER);
      assign post_mask = posts[first];
      assign busy = count != 0;
      always_ff @(posedge clk) begin
        held <= loaded || (held && !(cmd_valid && cmd_ready));
        if (taken) posts[next] <= cmd[`FX_LOAD_POST];
        next <= next + LG'(taken);
        first <= first + LG'(done);
        count <= count + (LG+1)'(taken) - (LG+1)'(done);
        if (rst) begin
          held <= 1'b0;
          next <= '0;
          first <= '0;
          count <= '0;
        end
      end
    end
  endgenerate
endmodule
