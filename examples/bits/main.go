// Command bits tells how well language models, saved by fusec train language, predict the part of the novel that they were not
// trained on, in bits per character. With -samples it writes windows of the other part, to calibrate on:
//
//	fusec train language --save novel.graph
//	go run ./examples/bits -samples novel.samples.safetensors novel.graph
//	fusec quantise novel.graph --weights i4 --calibrate novel.samples.safetensors -o novel4.graph
//	go run ./examples/bits novel.graph novel4.graph
//
// With -cache it reads the text of a checkpoint's folder one by one, with keys and values kept in a type:
//
//	fusec convert novel.graph novel/
//	go run ./examples/bits -cache i8 novel
package main

import (
	"flag"
	"fmt"
	"os"

	"fusec"
	"fusec/examples"
	"fusec/examples/llama"
	"fusec/graph"
	"fusec/graph/safetensors"
)

func main() {
	samples := flag.String("samples", "", "write windows of the text that models are trained on to `FILE`.safetensors")
	precision := flag.String("precision", "f32", "let contractions round to `NAME`")
	cache := flag.String("cache", "", "read a folder, with keys and values kept in `TYPE`: f32, bf16, f16 or i8")
	window := flag.Int("window", 0, "read the text in pieces of `N` bytes, with -cache; 0: as many as the model has positions for")
	flag.Parse()
	for _, path := range flag.Args() {
		err := error(nil)
		if *cache != "" {
			err = runFolder(path, *cache, *window)
		} else {
			err = run(path, *samples, *precision)
		}
		if err != nil {
			fmt.Fprintf(os.Stderr, "bits: %s: %v\n", path, err)
			os.Exit(1)
		}
	}
}

func runFolder(path, cache string, window int) error {
	d, err := graph.ParseDType(cache)
	if err != nil {
		return err
	}
	c, err := llama.Open(path)
	if err != nil {
		return err
	}
	defer c.Close()
	if window == 0 {
		window = c.Config.Context
	}
	bits, err := examples.BitsByCaches(c, examples.HeldOut(), window, d)
	if err != nil {
		return err
	}
	fmt.Printf("%s, caches of %s: %.4f bits per character\n", path, cache, bits)
	return nil
}

func run(path, samples, precision string) error {
	g, w, err := graph.Load(path)
	if err != nil {
		return err
	}
	p, err := fusec.ParsePrecision(precision)
	if err != nil {
		return err
	}
	if samples != "" {
		_, window, err := examples.SizeOf(g)
		if err != nil {
			return err
		}
		t, err := examples.Windows(32, window)
		if err != nil {
			return err
		}
		if err := safetensors.WriteFile(samples, []safetensors.Tensor{t.Safetensor("tokens")}, nil); err != nil {
			return err
		}
	}
	bits, err := examples.BitsPerCharacter(g, w.Tensors, examples.HeldOut(), fusec.WithPrecision(p))
	if err != nil {
		return err
	}
	fmt.Printf("%s: %.4f bits per character\n", path, bits)
	return nil
}
