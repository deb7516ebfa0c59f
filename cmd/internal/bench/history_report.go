package bench

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
)

// reportName is the argument that asks for the report of a history.
const reportName = "report"

// historyReport is what fusec bench report tells, and its JSON form.
type historyReport struct {
	Schema  string    `json:"schema"` // fusec.history.report/1
	File    string    `json:"file"`
	Runs    int       `json:"runs"`
	Commits int       `json:"commits"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Figures []*series `json:"figures"` // those that have changed first
}

// reportFormats are the endings of a drawn history.
var reportFormats = []string{".svg", ".html"}

// report reads a history, names what has changed, and draws it.
func (b *bencher) report(path string) (*outcome, error) {
	list, err := readHistory(path)
	if err != nil {
		return nil, err
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s is empty: fusec bench all --history %[1]s fills it", path)
	}
	rep := newHistoryReport(path, list)
	if b.output != "" {
		var drawn bytes.Buffer
		if err := historyPage.ExecuteTemplate(&drawn, strings.ToLower(filepath.Ext(b.output))[1:], rep.draw()); err != nil {
			return nil, fmt.Errorf("drawing %s: %w", b.output, err)
		}
		if err := cli.WriteFile(b.output, drawn.Bytes()); err != nil {
			return nil, err
		}
	}
	return &outcome{report: rep, text: rep.text()}, nil
}

func newHistoryReport(path string, list []record) *historyReport {
	rep := &historyReport{Schema: "fusec.history.report/1", File: path, Figures: byFigure(list), From: list[0].Time,
		To: list[0].Time}
	runs, commits := map[string]bool{}, map[string]bool{}
	for _, r := range list {
		runs[fmt.Sprint(r.Commit, r.Time, r.Machine)], commits[r.Commit] = true, true
		if r.Time.Before(rep.From) {
			rep.From = r.Time
		}
		if r.Time.After(rep.To) {
			rep.To = r.Time
		}
	}
	rep.Runs, rep.Commits = len(runs), len(commits)
	slices.SortStableFunc(rep.Figures, func(a, b *series) int { return b.rank() - a.rank() })
	return rep
}

// rank orders figures: those that have become worse come first, then those that have become better.
func (s *series) rank() int {
	switch {
	case len(s.Changes) == 0:
		return 0
	case slices.ContainsFunc(s.Changes, func(c change) bool { return c.Worse }):
		return 2
	}
	return 1
}

// title says how much there is.
func (rep *historyReport) title() string {
	const day = "2006-01-02"
	text := fmt.Sprintf("%s of %s, %s", cli.Plural(rep.Runs, "run", "runs"), cli.Plural(rep.Commits, "commit", "commits"),
		rep.From.Format(day))
	if to := rep.To.Format(day); to != rep.From.Format(day) {
		text += " to " + to
	}
	return text
}

// shortCommit is a commit's name in a table.
func shortCommit(s string) string {
	if r := []rune(s); len(r) > 12 {
		return string(r[:12])
	}
	return s
}

// print gives a value with its unit.
func (s *series) print(v float64) string {
	if s.Unit == unitTime {
		return cli.HumanTime(time.Duration(v * 1e6))
	}
	return cli.Digits(v) + " " + cli.Plain(s.Unit)
}

// signed is a change in percent.
func signed(part float64) string { return fmt.Sprintf("%+.1f %%", 100*part) }

// text prints the report for people.
func (rep *historyReport) text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n", rep.File, rep.title())
	changes := cli.NewTable("what", ">before", ">after", ">change", ">noise allows", "", "after commit", "at commit", "machine")
	n := 0
	for _, s := range rep.Figures {
		for _, c := range s.Changes {
			n++
			changes.Row(s.Name, s.print(c.Before), s.print(c.Now), signed(c.Part), "±"+cli.Percent(c.Allowance),
				verdictOf(c.Worse), shortCommit(c.After), shortCommit(c.Commit), s.Machine.String())
		}
	}
	if n == 0 {
		b.WriteString("\nno change beyond noise\n")
	} else {
		fmt.Fprintf(&b, "\n%s beyond noise\n\n%s", cli.Plural(n, "change", "changes"), changes)
	}
	all := cli.NewTable("what", ">runs", ">first", ">last", ">± rounds", ">noise of a run", "machine", ">threads")
	for _, s := range rep.Figures {
		first, last := s.Runs[0], s.Runs[len(s.Runs)-1]
		all.Row(s.Name, fmt.Sprint(len(s.Runs)), s.print(first.Value), s.print(last.Value), cli.Percent(last.Spread/2),
			cli.Percent(s.Noise),
			s.Machine.String(), fmt.Sprint(s.Threads))
	}
	return b.String() + "\n" + all.String()
}

// verdictOf says which way a figure has changed.
func verdictOf(worse bool) string {
	if worse {
		return "WORSE"
	}
	return "better"
}

// The drawing: a panel for each figure.

const panelWidth, panelHeight = 360, 150

// drawnHistory is what the templates draw.
type drawnHistory struct {
	File, Title   string
	Width, Height int // of all panels together, two in a row
	Panels        []panel
	Changes       []drawnChange
}

type panel struct {
	X, Y                 int // in the drawing of all
	Name, Note, Verdict  string
	Line                 string // points of a polyline
	Points               []point
	Marks                []mark
	Top, Bottom          string // values at the ends of the axis
	First, Last          string // commits
	Left, Right, Up, Low float64
}

type point struct {
	X, Y, From, To float64 // From and To are the ends of the spread
	Tip            string
}

// mark is where a figure has changed.
type mark struct {
	X          float64
	Text, Kind string
}

type drawnChange struct{ Name, Before, After, Change, Verdict, From, At, Machine string }

// draw lays out the panels.
func (rep *historyReport) draw() *drawnHistory {
	d := &drawnHistory{File: cli.Plain(rep.File), Title: rep.title()}
	for i, s := range rep.Figures {
		p := s.panel()
		p.X, p.Y = i%2*panelWidth, i/2*panelHeight
		d.Panels = append(d.Panels, p)
		for _, c := range s.Changes {
			d.Changes = append(d.Changes, drawnChange{cli.Plain(s.Name), s.print(c.Before), s.print(c.Now), signed(c.Part),
				verdictOf(c.Worse), cli.Plain(shortCommit(c.After)), cli.Plain(shortCommit(c.Commit)), cli.Plain(s.Machine.String())})
		}
	}
	d.Width, d.Height = min(2, len(rep.Figures))*panelWidth, (len(rep.Figures)+1)/2*panelHeight
	return d
}

// panel draws a figure: runs from left to right at equal steps, values from zero up.
func (s *series) panel() panel {
	p := panel{Name: cli.Plain(s.Name), Note: cli.Plain(fmt.Sprintf("%s · %s", direction(s.Unit), s.Machine)), Left: 56,
		Right: panelWidth - 14, Up: 46, Low: panelHeight - 24}
	top := 0.0
	for _, r := range s.Runs {
		top = max(top, r.Value*(1+r.Spread/2))
	}
	x := func(i float64) float64 {
		return math.Round(10*(p.Left+(p.Right-p.Left)*(i+0.5)/float64(len(s.Runs)))) / 10
	}
	y := func(v float64) float64 { return math.Round(10*(p.Low-(p.Low-p.Up)*max(v, 0)/top)) / 10 }
	p.Top, p.Bottom = s.print(top), "0"
	for i, r := range s.Runs {
		at := point{X: x(float64(i)), Y: y(r.Value), From: y(r.Value * (1 - r.Spread/2)), To: y(r.Value * (1 + r.Spread/2))}
		at.Tip = cli.Plain(fmt.Sprintf("%s ± %s at %s, %s; load %s", s.print(r.Value), cli.Percent(r.Spread/2),
			shortCommit(r.Commit),
			r.Time.Format("2006-01-02 15:04"), cli.Digits(r.Load)))
		p.Points = append(p.Points, at)
		p.Line += fmt.Sprintf("%g,%g ", at.X, at.Y)
	}
	for _, c := range s.Changes {
		m := mark{X: x(float64(c.At) - 0.5), Text: "▼ " + signed(c.Part), Kind: verdictOf(c.Worse)}
		if c.Part > 0 {
			m.Text = "▲ " + signed(c.Part)
		}
		p.Marks = append(p.Marks, m)
	}
	p.First = cli.Plain(shortCommit(s.Runs[0].Commit))
	if last := s.Runs[len(s.Runs)-1].Commit; len(s.Runs) > 1 {
		p.Last = cli.Plain(shortCommit(last))
	}
	return p
}

// direction says which values of a unit are better.
func direction(unit string) string {
	if moreIsBetter(unit) {
		return "more is better"
	}
	return "less is better"
}

//go:embed history.tmpl
var historyText string

// historyPage has the templates "svg" and "html".
var historyPage = template.Must(template.New("").Parse(historyText))
