package training

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
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
	clitest.Bad(t, clitest.FusecRun(t, "generate"), cli.ExitUsage, "which model? Give its folder")
}

// TestGenerateCheckpoint has a checkpoint of another program write: its text, JSON, a report, and what is refused.
func TestGenerateCheckpoint(t *testing.T) {
	const path = "../../../examples/llama/testdata/tiny"
	args := []string{"generate", path, "--prompt", "The house", "--max-tokens", "12"}
	text := clitest.Good(t, args...)
	if !strings.HasPrefix(text, "The house") || !strings.HasSuffix(text, "\n") {
		t.Errorf("it writes %q", text)
	}
	report := filepath.Join(t.TempDir(), "r.html")
	var j generated
	again := clitest.Good(t, append(args, "--threads", "1", "--json", "--report", report)...)
	if err := json.Unmarshal([]byte(again), &j); err != nil {
		t.Fatal(err)
	}
	if j.Prompt+j.Text+"\n" != text || j.PromptTokens < 2 || j.PromptRate <= 0 || j.Rate <= 0 ||
		(j.Stop == "length") != (len(j.Tokens) == 12) {
		t.Errorf("JSON %s, text %q", again, text)
	}
	if page, err := os.ReadFile(report); err != nil || len(page) < 10000 {
		t.Errorf("a report of %d bytes, %v", len(page), err)
	}
	if other := clitest.Good(t, append(args, "--seed", "2", "--top-p", "0.9", "--temperature", "2")...); other == text {
		t.Errorf("another seed writes the same, %q", text)
	}
	greedy := clitest.Good(t, append(args, "--temperature", "0")...)
	if ref := clitest.Good(t, append(args, "--temperature", "0", "--target", "ref")...); ref != greedy {
		t.Errorf("the reference writes %q, the CPU %q", ref, greedy)
	}
	for _, precision := range []string{"bf16", "f16"} {
		half := clitest.Good(t, append(args, "--temperature", "0", "--precision", precision, "--max-tokens", "2")...)
		if !strings.HasPrefix(greedy, strings.TrimSuffix(half, "\n")) {
			t.Errorf("in %s it writes %q, in f32 %q", precision, half, greedy)
		}
	}
	eight := clitest.Good(t, append(args, "--temperature", "0", "--cache", "i8", "--max-tokens", "2")...)
	if !strings.HasPrefix(greedy, strings.TrimSuffix(eight, "\n")) {
		t.Errorf("with keys in 8 bits it writes %q, in f32 %q", eight, greedy)
	}
	clitest.Bad(t, clitest.FusecRun(t, append(args, "--cache", "i4")...), cli.ExitUsage, "i4")
	clitest.Emulated(t)
	eight = clitest.Good(t, append(args, "--temperature", "0", "--target", "cuda", "--cache", "i8", "--max-tokens", "2")...)
	if !strings.HasPrefix(greedy, strings.TrimSuffix(eight, "\n")) {
		t.Errorf("CUDA with keys in 8 bits writes %q, the CPU in f32 %q", eight, greedy)
	}
	cuda := clitest.Good(t, append(args, "--target", "cuda", "--max-tokens", "3")...)
	if !strings.HasPrefix(text, strings.TrimSuffix(cuda, "\n")) {
		t.Errorf("CUDA picks other tokens: it writes %q, the CPU %q", cuda, text)
	}
	for _, precision := range []string{"f32", "bf16"} {
		cuda := clitest.Good(t, append(args, "--temperature", "0", "--target", "cuda", "--precision", precision, "--max-tokens", "2")...)
		if !strings.HasPrefix(greedy, strings.TrimSuffix(cuda, "\n")) {
			t.Errorf("CUDA in %s writes %q, the CPU %q", precision, cuda, greedy)
		}
	}
	clitest.Bad(t, clitest.FusecRun(t, "generate", t.TempDir()), cli.ExitFailure, "config.json")
	clitest.Bad(t, clitest.FusecRun(t, "generate", path, "--top-p", "0"), cli.ExitUsage, "--top-p 0")
	clitest.Bad(t, clitest.FusecRun(t, "generate", path, "--report", "/none/x.html"), cli.ExitFailure, "/none/x.html")
	clitest.Bad(t, clitest.FusecRun(t, "generate", "x.graph", "--json"), cli.ExitUsage, "--json and --report")
	clitest.Bad(t, clitest.FusecRun(t, "generate", "x.graph", "--cache", "i8"), cli.ExitUsage, "--cache is for a folder")
	file := filepath.Join(t.TempDir(), "x.gguf")
	if err := os.WriteFile(file, []byte("GGML"), 0o666); err != nil {
		t.Fatal(err)
	}
	clitest.Bad(t, clitest.FusecRun(t, "generate", file), cli.ExitFailure, "x.gguf", "is it a GGUF file?")
}
