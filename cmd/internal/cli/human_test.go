package cli

import (
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"fusec/graph"
)

func TestHuman(t *testing.T) {
	for got, want := range map[string]string{
		HumanBytes(0):                                "0 B",
		HumanBytes(1023):                             "1023 B",
		HumanBytes(1024):                             "1.00 KiB",
		HumanBytes(150 << 20):                        "150 MiB",
		HumanBytes(5 << 50):                          "5120 TiB",
		HumanFLOPs(1_999_999):                        "2.00 MFLOP",
		HumanFLOPs(999_900):                          "1.00 MFLOP",
		HumanTime(999):                               "999 ns",
		HumanTime(12345 * time.Nanosecond):           "12.3 µs",
		HumanTime(90 * time.Second):                  "90.0 s",
		Percent(0.1234):                              "12.3 %",
		Digits(99.96):                                "100",
		Plural(1, "launch", "launches"):              "1 launch",
		Plural(0, "launch", "launches"):              "0 launches",
		strings.Join(FirstOf([]string{"a"}, 2), " "): "a",
		strings.Join(FirstOf([]string{"a", "b", "c"}, 1), " "): "a and 2 more",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestOrigins(t *testing.T) {
	names, pos := Origins([]graph.Origin{{Name: "a", Pos: "m.go:1"}, {Name: "b"}, {Pos: "m.go:2"}, {Name: "c", Pos: "m.go:2"}})
	if names != "a, b, c" || pos != "m.go:1 (+1)" {
		t.Errorf("%q, %q", names, pos)
	}
}

func TestTable(t *testing.T) {
	table := NewTable("name", ">n", "empty", "rest")
	table.Row("ä", "1", "", "x")
	table.Row("long name", "100", "", "")
	want := "name         n  rest\nä            1  x\nlong name  100\n"
	if got := table.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestProgress(t *testing.T) {
	var b strings.Builder
	if p := NewProgress(&b); p.on {
		t.Error("a builder is a terminal")
	}
	p := &Progress{w: &b, on: true}
	p.Show("round %d", 1)
	p.Done()
	if b.String() != "\r\x1b[Kround 1\r\x1b[K" {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	shown := make(chan struct{})
	stop := p.Ticking(sync.OnceValue(func() string { defer close(shown); return "place and route" }))
	<-shown
	stop()
	if s := b.String(); !strings.HasPrefix(s, "\r\x1b[Kplace and route") || !strings.HasSuffix(s, "\r\x1b[K") {
		t.Errorf("%q", s)
	}
	(&Progress{w: &b, on: false}).Ticking(func() string { t.Error("asked in a pipe"); return "" })()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !IsTerminal(f) {
		t.Error("a device is not watched")
	}
}
