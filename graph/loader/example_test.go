package loader_test

import (
	"context"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"fusec/graph"
	"fusec/graph/loader"
)

// Text as a language model reads it: windows of six bytes, and the same windows one byte on as what is to be predicted.
func Example() {
	dir, err := os.MkdirTemp("", "text")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "corpus.txt")
	if err := os.WriteFile(path, []byte("to be or not to be, that is the question"), 0o666); err != nil {
		log.Fatal(err)
	}

	l, err := loader.Open(loader.Options{Batch: 2, Shuffle: true, Seed: 7, Epochs: 1}, loader.Source{
		Name: "text", Path: path, Raw: "u8", DType: graph.I64, Limit: 128,
		Window: loader.Window{Length: 6, Targets: "next"},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	for b, err := range l.Batches(context.Background()) {
		if err != nil {
			log.Fatal(err)
		}
		// Here a program would run with b.Tensors as its inputs.
		text, next := b.Tensors["text"], b.Tensors["next"]
		fmt.Printf("step %d, rows %v: %v\n", b.Step, b.Index, text.Type)
		for i := range b.Rows {
			fmt.Printf("  %q → %q\n", letters(text, i), letters(next, i))
		}
	}
	fmt.Println("the next step is", l.Position())
	// Output:
	// step 0, rows [4 1]: i64[2,6]
	//   " is th" → "is the"
	//   "or not" → "r not "
	// step 1, rows [3 0]: i64[2,6]
	//   ", that" → " that "
	//   "to be " → "o be o"
	// step 2, rows [2 5]: i64[2,6]
	//   " to be" → "to be,"
	//   "e ques" → " quest"
	// the next step is 3
}

// letters makes text of row i of a tensor of bytes.
func letters(t *graph.Tensor, i int) string {
	n := t.Type.Shape.At(1)
	var s []byte
	for _, c := range t.Data.([]int64)[i*n:][:n] {
		s = append(s, byte(c))
	}
	return string(s)
}
