// The semaphores: counters that descriptors wait for and post. Four clients (fetch, LOAD, EXEC, STORE; a lower number
// goes first) ask with `want` and a mask, both of which stay until `take` answers. It answers one client at a time,
// whose semaphores all stand above zero, and takes one from each. Any number of clients post in one cycle. A semaphore
// that is posted beyond its width raises `over` two cycles later, with the client that posted. What comes in and what
// goes out stands in registers: four cycles lie between a post and the take that waited for it.
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
  logic [COUNT-1:0] above;
  always_comb for (int s = 0; s < COUNT; s++) above[s] = value[s] != 0;

  // Whose semaphores all stood above zero a cycle ago. What was taken shows in that two cycles after the choice.
  logic [CLIENTS-1:0] may, choice;
  logic [COUNT-1:0] chosen, taken;
  logic [1:0] recent;
  always_comb begin
    choice = '0;
    chosen = '0;
    for (int c = 0; c < CLIENTS; c++)
      if (choice == 0 && may[c] && recent == 0) begin
        choice[c] = 1'b1;
        chosen = wait_masks[c*COUNT +: COUNT];
      end
  end

  // What a semaphore gets by its posts, less what is taken from it: -1 to 4. A table, which is less deep than adders.
  function automatic logic [3:0] change(input logic [3:0] posts, input logic less);
    logic [2:0] gain;
    gain = {&posts, (posts[0] & posts[1]) ^ (posts[2] & posts[3]) ^ ((posts[0] ^ posts[1]) & (posts[2] ^ posts[3])),
            ^posts};
    case ({less, gain})
      4'b1_000: change = 4'b1111;
      4'b1_001: change = 4'd0;
      4'b1_010: change = 4'd1;
      4'b1_011: change = 4'd2;
      4'b1_100: change = 4'd3;
      default: change = {1'b0, gain};
    endcase
  endfunction

  logic [COUNT-1:0] posted [0:CLIENTS-1];
  logic [3:0] step [0:COUNT-1];
  logic [WIDTH:0] next [0:COUNT-1];
  logic [COUNT-1:0] full, full_q;
  logic [1:0] poster [0:COUNT-1];  // a client that posted it a cycle ago
  always_comb for (int s = 0; s < COUNT; s++) begin
    step[s] = change({posted[3][s], posted[2][s], posted[1][s], posted[0][s]}, taken[s]);
    next[s] = {1'b0, value[s]} + {{(WIDTH-3){step[s][3]}}, step[s]};
    full[s] = next[s][WIDTH];
  end

  always_comb begin
    over = |full_q;
    over_client = '0;
    for (int s = COUNT - 1; s >= 0; s--) if (full_q[s]) over_client = poster[s];
  end

  always_ff @(posedge clk) begin
    for (int c = 0; c < CLIENTS; c++) begin
      may[c] <= !rst && want[c] && (wait_masks[c*COUNT +: COUNT] & ~above) == 0;
      posted[c] <= rst || !post[c] ? '0 : post_masks[c*COUNT +: COUNT];
    end
    full_q <= rst ? '0 : full;
    take <= rst ? '0 : choice;
    taken <= rst ? '0 : chosen;
    recent <= rst ? '0 : {recent[0], choice != 0};
    for (int s = 0; s < COUNT; s++) begin
      value[s] <= rst ? '0 : next[s][WIDTH-1:0];
      poster[s] <= posted[0][s] ? 2'd0 : posted[1][s] ? 2'd1 : posted[2][s] ? 2'd2 : 2'd3;
    end
  end

`ifdef FORMAL
  // Of any one semaphore: it counts posts less takes, and nothing is taken from zero. Whoever is given to has asked, is
  // alone, and had all it waited for; the first of those who may is not passed over.
  logic started = 1'b0;
  always_ff @(posedge clk) started <= 1'b1;
  (* anyconst *) wire [$clog2(COUNT)-1:0] s;
  logic [WIDTH+7:0] shadow = '0;
  wire [2:0] given = 3'(post[0] & post_masks[s]) + 3'(post[1] & post_masks[COUNT + s]) +
                     3'(post[2] & post_masks[2*COUNT + s]) + 3'(post[3] & post_masks[3*COUNT + s]);
  wire lost = choice[0] & wait_masks[s] | choice[1] & wait_masks[COUNT + s] | choice[2] & wait_masks[2*COUNT + s] |
              choice[3] & wait_masks[3*COUNT + s];
  // Clients go on asking for the same until they are answered, and stop in the cycle after that.
  logic [CLIENTS-1:0] asked = '0, answered = '0;
  logic [CLIENTS*COUNT-1:0] asked_masks;
  always_ff @(posedge clk) begin
    shadow <= rst ? '0 : shadow + (WIDTH+8)'(given) - (WIDTH+8)'(lost);
    asked <= rst ? '0 : want & ~take;
    answered <= rst ? '0 : take;
    asked_masks <= wait_masks;
  end
  wire [2:0] coming = 3'(posted[0][s]) + 3'(posted[1][s]) + 3'(posted[2][s]) + 3'(posted[3][s]);
  always_comb begin
    if (!started) assume (rst);
    if (started && !rst) assume (!over && full == 0);  // the machine stops then
    for (int c = 0; c < CLIENTS; c++) begin
      if (asked[c]) assume (want[c] && wait_masks[c*COUNT +: COUNT] == asked_masks[c*COUNT +: COUNT]);
      if (answered[c]) assume (!want[c]);
    end
    if (started) begin
      assert (shadow == (WIDTH+8)'(value[s]) + (WIDTH+8)'(coming) - (WIDTH+8)'(taken[s]));
      assert (!(taken[s] && value[s] == 0));
      assert ((take & ~want) == 0);
      assert ((take & (take - 4'd1)) == 0);
      assert (recent[0] == (take != 0));
      for (int c = 0; c < CLIENTS; c++) begin
        if (may[c] && recent == 0) assert (asked[c] && (asked_masks[c*COUNT +: COUNT] & ~above) == 0);
        if (may[c] && recent == 0 && (may & ((4'd1 << c) - 4'd1)) == 0) assert (choice == 4'd1 << c);
      end
      if (answered != 0) assert (recent[1]);
    end
  end
`endif
endmodule
