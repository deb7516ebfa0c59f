package dot

// scene is a picture before it is written in the DOT language.
type scene struct {
	heading  string   // the graph's and the stage's name
	facts    []string // one line each
	nodes    []*box
	clusters []*cluster
	edges    []*edge
	used     map[look]bool // for the legend
}

// box is a node of the picture.
type box struct {
	key     string // unique; the SVG element's id
	look    look
	inside  *cluster
	lines   []textLine
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
	roleType // small and faint
)

// cluster is a frame around nodes: a fusion, or layers that repeat.
type cluster struct {
	key     string
	look    look
	inside  *cluster
	repeats int // > 0: a frame around repeated layers
	title   string
	notes   []string // below the title
	tooltip string
}

// edge points in the direction of the data.
type edge struct {
	from, to *box
	style    edgeStyle
	label    string
	tooltip  string
}

// edgeStyle is the meaning of an edge.
type edgeStyle uint8

const (
	edgeData edgeStyle = iota
	edgeParam
	edgeCarried // to the next repetition
	edgeUpdate
)

func (s *scene) box(b *box) *box {
	s.nodes = append(s.nodes, b)
	s.use(b.look)
	return b
}

func (s *scene) cluster(c *cluster) *cluster {
	s.clusters = append(s.clusters, c)
	if c.repeats == 0 {
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
