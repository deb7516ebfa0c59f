package fusec_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/graph"
)

// TestLinks looks for every file that the documentation links to.
func TestLinks(t *testing.T) {
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	link := regexp.MustCompile(`\]\(([^)\s]+)\)`)
	found := 0
	for _, page := range append(pages, "README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			to, _, _ := strings.Cut(m[1], "#")
			if to == "" || strings.Contains(to, "://") {
				continue
			}
			found++
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), to)); err != nil {
				t.Errorf("%s links to %s: %v", page, m[1], err)
			}
		}
	}
	if found < 20 {
		t.Errorf("%d links in %d pages: the test does not find them", found, len(pages)+1)
	}
}

// TestReadmeCounts counts what the README says of the block in its picture, from the Gorgonia graph to the launches.
func TestReadmeCounts(t *testing.T) {
	path := "testdata/models/transformer-block.graph"
	model := zoo.TransformerBlock(4, 128, 256, 8, 1024)
	again := filepath.Join(t.TempDir(), "block.graph")
	if err := fusec.Save(again, model.Graph, model.Input); err != nil {
		t.Fatal(err)
	}
	g, err := graph.LoadGraph(path)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := graph.LoadGraph(again); err != nil || !graph.SameStructure(g, same) {
		t.Fatalf("%s is not what is saved of the Gorgonia graph (%v)", path, err)
	}
	sources, views := 0, 0
	for _, n := range g.Nodes {
		switch graph.ClassOf(n.Op) {
		case graph.ClassSource:
			sources++
		case graph.ClassView:
			views++
		}
	}
	_, program, err := fusec.Plan(g)
	if err != nil {
		t.Fatal(err)
	}
	nodes, launches := len(model.Graph.AllNodes()), len(program.Launches)
	operations := len(g.Nodes) - sources
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	readme := strings.Join(strings.Fields(string(text)), " ")
	for _, want := range []string{
		fmt.Sprintf("A transformer block of %d Gorgonia nodes as %d launches](docs/transformer-block.svg)", nodes, launches),
		fmt.Sprintf("fusec dump %s ", path),
		fmt.Sprintf("The block in the picture is %d nodes in Gorgonia. fusec's graph has %d,", nodes, len(g.Nodes)),
		fmt.Sprintf("%d of them are inputs, weights and constants. Of the %d operations %d are views,", sources, operations, views),
		fmt.Sprintf("The other %d would be one launch each. Fused, they are %d launches.", operations-views, launches),
	} {
		if !strings.Contains(readme, want) {
			t.Errorf("README.md does not say %q", want)
		}
	}
}
