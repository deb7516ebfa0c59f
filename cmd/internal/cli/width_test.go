package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"
)

// screen is a terminal of 80 columns.
type screen struct{ bytes.Buffer }

func (*screen) Columns() int { return 80 }

// On a terminal no line is longer than it is wide, names keep both ends, and --wide and pipes have everything.
func TestWidth(t *testing.T) {
	name := "model/" + strings.Repeat("encoder/", 12) + "dense"
	table := &Command{Name: "table", Setup: func(f *FlagSet) Action {
		var many bool
		f.BoolVar(&many, "many", false, "")
		return func(e *Env, args []string) error {
			tab := NewTable(">#", "name", ">time", "built at")
			if many {
				tab = NewTable(">#", "name", "a", ">time", ">b", ">c", ">d", ">e", ">f", "built at")
				tab.Row("1", name, name, "12.5 ms", "123456789", "123456789", "123456789", "123456789", "123456789", name)
			} else {
				tab.Row("1", name, "12.5 ms", name+".go:12")
			}
			show := NewProgress(e.Stderr)
			show.Show("%s: round 1", name+name)
			return e.Print(fmt.Sprintf("a report\n  %s\n%s", strings.Repeat("some words ", 20), tab))
		}
	}}
	run := func(args ...string) (out, stderr string) {
		var s, p screen
		if code := RunCommandLine(context.Background(), []*Command{table}, args, nil, &s, &p); code != ExitOK {
			t.Fatalf("exit code %d: %s", code, p.String())
		}
		return s.String(), p.String()
	}
	for _, args := range [][]string{{"table"}, {"table", "--many"}} {
		out, bar := run(args...)
		for line := range strings.Lines(out + strings.TrimPrefix(bar, "\r\x1b[K")) {
			if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 80 {
				t.Errorf("%v: %d columns: %s", args, n, line)
			}
		}
		if !strings.Contains(out, "mode") || !strings.Contains(out, "…") || !strings.Contains(out, "12.5 ms") {
			t.Errorf("%v:\n%s", args, out)
		}
		if left := strings.Contains(out, "\nleft out: "); left != (len(args) > 1) {
			t.Errorf("%v: columns left out: %v\n%s", args, left, out)
		}
		wide, _ := run(append(args, "--wide")...)
		var pipe bytes.Buffer
		RunCommandLine(context.Background(), []*Command{table}, args, nil, &pipe, &bytes.Buffer{})
		if wide != pipe.String() || !strings.Contains(wide, name) || strings.Contains(wide, "…") {
			t.Errorf("%v: --wide prints\n%s\na pipe has\n%s", args, wide, pipe.String())
		}
	}
}
