package training

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"path/filepath"
	"strings"
	"testing"
)

// What is trained in a moment already writes, the same text for the same seed.
func TestGenerate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "n.graph")
	clitest.Good(t, "train", "language", "--steps", "1", "--batch", "1", "--save", path)
	args := []string{"generate", path, "--prompt", "It is", "--tokens", "20"}
	text := clitest.Good(t, args...)
	if !strings.HasPrefix(text, "It is") || len([]rune(text)) != len("It is")+20+1 {
		t.Errorf("it writes %q", text)
	}
	if again := clitest.Good(t, append(args, "--threads", "2")...); again != text {
		t.Errorf("on two cores it writes %q, not %q", again, text)
	}
	if other := clitest.Good(t, append(args, "--seed", "2")...); other == text {
		t.Errorf("another seed writes the same, %q", text)
	}
	clitest.Bad(t, clitest.FusecRun(t, "generate", path, "--prompt", ""), cli.ExitUsage, "--prompt is empty")
	r := clitest.FusecRun(t, "generate", path, "--prompt", "é")
	if clitest.Bad(t, r, cli.ExitFailure, "the prompt: byte 0"); r.Out != "" {
		t.Errorf("it printed %q", r.Out)
	}
	clitest.Bad(t, clitest.FusecRun(t, "generate", path, "--tokens", "9223372036854775807"), cli.ExitUsage, "at most 1073741824")
	clitest.Bad(t, clitest.FusecRun(t, "generate", "../../../testdata/models/moe-block.graph"), cli.ExitFailure, "moe-block.graph",
		"is it a model of fusec train language?")
	clitest.Bad(t, clitest.FusecRun(t, "generate", "none.graph"), cli.ExitFailure, "none.graph")
}
