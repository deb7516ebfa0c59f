package main

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
		humanBytes(0):                                "0 B",
		humanBytes(1023):                             "1023 B",
		humanBytes(1024):                             "1.00 KiB",
		humanBytes(150 << 20):                        "150 MiB",
		humanBytes(5 << 50):                          "5120 TiB",
		humanFLOPs(1_999_999):                        "2.00 MFLOP",
		humanFLOPs(999_900):                          "1.00 MFLOP",
		humanTime(999):                               "999 ns",
		humanTime(12345 * time.Nanosecond):           "12.3 µs",
		humanTime(90 * time.Second):                  "90.0 s",
		percent(0.1234):                              "12.3 %",
		digits(99.96):                                "100",
		plural(1, "launch", "launches"):              "1 launch",
		plural(0, "launch", "launches"):              "0 launches",
		strings.Join(firstOf([]string{"a"}, 2), " "): "a",
		strings.Join(firstOf([]string{"a", "b", "c"}, 1), " "): "a and 2 more",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestOrigins(t *testing.T) {
	names, pos := origins([]graph.Origin{{Name: "a", Pos: "m.go:1"}, {Name: "b"}, {Pos: "m.go:2"}, {Name: "c", Pos: "m.go:2"}})
	if names != "a, b, c" || pos != "m.go:1 (+1)" {
		t.Errorf("%q, %q", names, pos)
	}
}

func TestTable(t *testing.T) {
	table := newTable("name", ">n", "empty", "rest")
	table.row("ä", "1", "", "x")
	table.row("long name", "100", "", "")
	want := "name         n  rest\nä            1  x\nlong name  100\n"
	if got := table.String(); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestProgress(t *testing.T) {
	var b strings.Builder
	if p := newProgress(&b); p.on {
		t.Error("a builder is a terminal")
	}
	p := &progress{&b, true}
	p.show("round %d", 1)
	p.done()
	if b.String() != "\r\x1b[Kround 1\r\x1b[K" {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	shown := make(chan struct{})
	stop := p.ticking(sync.OnceValue(func() string { defer close(shown); return "place and route" }))
	<-shown
	stop()
	if s := b.String(); !strings.HasPrefix(s, "\r\x1b[Kplace and route") || !strings.HasSuffix(s, "\r\x1b[K") {
		t.Errorf("%q", s)
	}
	(&progress{&b, false}).ticking(func() string { t.Error("asked in a pipe"); return "" })()
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if !isTerminal(f) {
		t.Error("a device is not watched")
	}
}
