// The semaphores: counters that descriptors wait for and post. Four clients (fetch, LOAD, EXEC, STORE; a lower number
// goes first) ask with `want` and a mask; `take` answers one of them a cycle, whose semaphores all stand above zero,
// and takes one from each. Any number of clients post in one cycle. Posting a full semaphore raises `over` in that
// cycle, with the client that posted.
`default_nettype none
module fx_semaphores #(
  parameter int COUNT = 8,
  parameter int WIDTH = 8,
  localparam int CLIENTS = 4
) (
  input  wire                       clk,
  input  wire                       rst,
  input  wire  [CLIENTS-1:0]        want,
  input  wire  [CLIENTS*COUNT-1:0]  wait_masks,
  output logic [CLIENTS-1:0]        take,
  input  wire  [CLIENTS-1:0]        post,
  input  wire  [CLIENTS*COUNT-1:0]  post_masks,
  output logic                      over,
  output logic [1:0]                over_client
);
  logic [WIDTH-1:0] value [0:COUNT-1];
  logic [COUNT-1:0] above, taken, full;

  always_comb begin
    take = '0;
    taken = '0;
    for (int c = 0; c < CLIENTS; c++)
      if (take == 0 && want[c] && (wait_masks[c*COUNT +: COUNT] & ~above) == 0) begin
        take[c] = 1'b1;
        taken = wait_masks[c*COUNT +: COUNT];
      end
  end

  // What each semaphore gets and loses in this cycle: -1 to 4.
  logic [3:0] change [0:COUNT-1];
  logic [WIDTH:0] next [0:COUNT-1];
  always_comb for (int s = 0; s < COUNT; s++) begin
    change[s] = {3'b0, post[0] & post_masks[s]} + {3'b0, post[1] & post_masks[COUNT + s]} +
                {3'b0, post[2] & post_masks[2*COUNT + s]} + {3'b0, post[3] & post_masks[3*COUNT + s]} -
                {3'b0, taken[s]};
    next[s] = {1'b0, value[s]} + {{(WIDTH-3){change[s][3]}}, change[s]};
    above[s] = value[s] != 0;
    full[s] = next[s][WIDTH];
  end

  always_comb begin
    over = |full;
    over_client = 2'd0;
    for (int c = CLIENTS - 1; c >= 0; c--)
      if (post[c] && (post_masks[c*COUNT +: COUNT] & full) != 0) over_client = 2'(c);
  end

  always_ff @(posedge clk)
    for (int s = 0; s < COUNT; s++) value[s] <= rst ? '0 : next[s][WIDTH-1:0];

`ifdef FORMAL
  // Of any one semaphore: it counts posts less takes, nothing is taken from zero, and what is given is what was asked.
  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  always_comb if (!started) assume (rst);
  (* anyconst *) wire [$clog2(COUNT)-1:0] s;
  logic [WIDTH+7:0] shadow = '0;
  wire [COUNT-1:0] mask0 = wait_masks[0 +: COUNT], mask1 = wait_masks[COUNT +: COUNT],
                   mask2 = wait_masks[2*COUNT +: COUNT], mask3 = wait_masks[3*COUNT +: COUNT];
  wire [2:0] given = 3'(post[0] & post_masks[s]) + 3'(post[1] & post_masks[COUNT + s]) +
                     3'(post[2] & post_masks[2*COUNT + s]) + 3'(post[3] & post_masks[3*COUNT + s]);
  wire lost = take[0] & mask0[s] | take[1] & mask1[s] | take[2] & mask2[s] | take[3] & mask3[s];
  always_ff @(posedge clk) shadow <= rst ? '0 : shadow + (WIDTH+8)'(given) - (WIDTH+8)'(lost);
  always_comb begin
    if (started && !rst) assume (!over);  // the machine stops then
    if (started) begin
      assert (shadow == (WIDTH+8)'(value[s]));
      assert (!(lost && value[s] == 0));
      assert ((take & ~want) == 0);
      assert ((take & (take - 4'd1)) == 0);
      assert (!(want[0] && (mask0 & ~above) == 0 && !take[0]));  // the first is never passed over
      assert (take != 0 || (!(want[1] && (mask1 & ~above) == 0) && !(want[2] && (mask2 & ~above) == 0) &&
                            !(want[3] && (mask3 & ~above) == 0)));
    end
  end
`endif
endmodule
