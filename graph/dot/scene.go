package dot

import "fusec/graph"

// scene is a picture before it is written in the DOT language.
type scene struct {
	heading  string   // the model's and the stage's name
	facts    []string // one line each
	nodes    []*box
	clusters []*cluster
	edges    []*edge
	used     map[look]bool // for the legend
	missed   bool          // there is a mark of a missed fusion
	timed    bool          // there are bars of measured times
}

// box is a node of the picture: a card if it has a head, else a pill or a plain box.
type box struct {
	key     string // unique; the SVG element's id
	look    look
	inside  *cluster
	phase   graph.Phase
	head    string // in the coloured bar at the top
	lines   []textLine
	sources []string // parameters and states, at the bottom
	marks   []string // missed fusions
	time    float64  // measured, as a share of the longest; 0 is none
	host    bool     // does not run on the program's target
	tooltip string
}

// textLine is a line of a label.
type textLine struct {
	text string
	role textRole
}

// textRole is the style of a line of a label.
type textRole uint8

const (
	roleName textRole = iota // bold
	roleOp
	roleType  // small and faint
	roleTitle // large and bold
)

// cluster is a frame around nodes: a stage of a pipeline, a phase, layers that repeat, or a fusion with its body.
type cluster struct {
	key     string
	look    look
	kind    clusterKind
	phase   graph.Phase
	inside  *cluster
	repeats int
	title   string
	notes   []string // below the title
	tooltip string
}

type clusterKind uint8

const (
	clusterFusion clusterKind = iota
	clusterRepeat
	clusterPhase
	clusterStage
)

// holds reports whether k is c or inside it.
func (c *cluster) holds(k *cluster) bool {
	for ; k != nil; k = k.inside {
		if k == c {
			return true
		}
	}
	return false
}

// edge points in the direction of the data.
type edge struct {
	from, to *box
	style    edgeStyle
	label    string
	tooltip  string
	whole    bool // begins at the frame that from is in
	main     bool // the last value that a box waits for
}

// edgeStyle is the meaning of an edge.
type edgeStyle uint8

const (
	edgeData    edgeStyle = iota
	edgeSide              // from a source
	edgeKept              // from the forward pass to the backward pass
	edgeCarried           // from the repetition before
	edgeUpdate
	edgeHidden // only for the layout
)

func (s *scene) box(b *box) *box {
	s.nodes = append(s.nodes, b)
	s.use(b.look)
	return b
}

func (s *scene) cluster(c *cluster) *cluster {
	s.clusters = append(s.clusters, c)
	if c.kind == clusterFusion {
		s.use(c.look)
	}
	return c
}

// use adds a look to the legend.
func (s *scene) use(l look) {
	if s.used == nil {
		s.used = make(map[look]bool)
	}
	s.used[l] = true
}

// depths is the length of the longest path to each box; heights that of the longest path from it.
func (s *scene) depths() map[*box]int {
	return s.longest(func(e *edge) (*box, *box) { return e.from, e.to })
}

func (s *scene) heights() map[*box]int {
	return s.longest(func(e *edge) (*box, *box) { return e.to, e.from })
}

// longest is the length of the longest path to each box over edges in the given direction.
func (s *scene) longest(ends func(*edge) (from, to *box)) map[*box]int {
	length, out, waits := make(map[*box]int, len(s.nodes)), make(map[*box][]*box), make(map[*box]int)
	for _, e := range s.edges {
		from, to := ends(e)
		out[from] = append(out[from], to)
		waits[to]++
	}
	var ready []*box
	for _, b := range s.nodes {
		if waits[b] == 0 {
			ready = append(ready, b)
		}
	}
	for len(ready) > 0 {
		b := ready[0]
		ready = ready[1:]
		for _, to := range out[b] {
			length[to] = max(length[to], length[b]+1)
			if waits[to]--; waits[to] == 0 {
				ready = append(ready, to)
			}
		}
	}
	return length
}
