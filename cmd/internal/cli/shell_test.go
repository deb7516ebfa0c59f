package cli_test

import (
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
)

func TestShell(t *testing.T) {
	for _, c := range []struct{ words, want string }{
		{"train model.graph --target cpu,cpu", "train model.graph --target cpu,cpu"},
		{"x=a/b.npy:f32 é 日本", "x=a/b.npy:f32 é 日本"},
		{"my\u2420model it's ~ # =x", "'my\u2420model' 'it'\\''s' '~' '#' '=x'"},
	} {
		words := strings.Fields(c.words)
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "\u2420", " ")
		}
		if got, want := cli.Shell(words...), strings.ReplaceAll(c.want, "\u2420", " "); got != want {
			t.Errorf("%q: %s, want %s", words, got, want)
		}
	}
	if got := cli.Shell("", "a\nb", "\xff'\\\t"); got != `'' $'a\012b' $'\377\'\\\011'` {
		t.Errorf("%s", got)
	}
}

// TestShellReads: a shell reads the words that were written.
func TestShellReads(t *testing.T) {
	shell := clitest.Tool(t, "bash")
	r := rand.New(rand.NewPCG(1, 2))
	parts := strings.Split("a|b| |'|\"|\\|$HOME|`id`|\n|\t|\x1b|\xff|é|\u00a0|*|~|!|{a,b}|#|&|;|-|=|0", "|")
	words := []string{"|", ""}
	for range 300 {
		w := ""
		for range r.IntN(5) {
			w += parts[r.IntN(len(parts))]
		}
		words = append(words, w)
	}
	line := cli.Shell(words...)
	if cli.Plain(line) != line || strings.Contains(line, "\n") {
		t.Errorf("control characters in %q", line)
	}
	out, err := exec.Command(shell, "-c", `printf '%s\0' `+line).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSuffix(string(out), "\x00"), "\x00")
	if len(got) != len(words) {
		t.Fatalf("%d words, want %d", len(got), len(words))
	}
	for i, w := range words {
		if got[i] != w {
			t.Errorf("%q is read as %q", w, got[i])
		}
	}
}
