// fx_ram: a memory with one write and one read port. What is read in the cycle of a write to the same word is not defined: semaphores keep
// readers and writers of a word apart.
`default_nettype none
module fx_ram #(
  parameter WIDTH = 64,
  parameter DEPTH = 512,
  localparam ADDR_BITS = DEPTH > 1 ? $clog2(DEPTH) : 1
) (
  input  wire                  clk,
  input  wire                  we,
  input  wire  [ADDR_BITS-1:0] waddr,
  input  wire  [WIDTH-1:0]     wdata,
  input  wire  [ADDR_BITS-1:0] raddr,
  output logic [WIDTH-1:0]     rdata   // of raddr in the cycle before
);
  (* no_rw_check *) logic [WIDTH-1:0] mem [0:DEPTH-1];
  always_ff @(posedge clk) begin
    if (we) mem[waddr] <= wdata;
    rdata <= mem[raddr];
  end
endmodule
