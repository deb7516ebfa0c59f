// Command fusec draws, runs, explains and times computation graphs as fusec compiles them.
//
//	fusec dump model.graph > model.dot          the compiled graph, or any stage on the way to it, as a picture
//	fusec explain model.graph                   what was fused, what nearly was, and what it saves
//	fusec report model.graph                    a page: time, layers, launches, missed fusions, memory, code
//	fusec plan model.graph --mesh data=2        time, memory and exchanges on several participants, predicted
//	fusec lock model.graph                      write down what is fused
//	fusec check model.graph                     tell which of that is lost, and why
//	fusec run model.graph --in x=x.npy          run it
//	fusec compile model.graph -o model.fuse     compile it ahead of time for a GPU or an FPGA
//	fusec convert model.onnx model.graph        write it in another format
//	fusec quantise model.graph -o small.graph   store its weights in few bits
//	fusec demo                                  what attention, mixture of experts and fusion are worth, side by side
//	fusec train language --save novel.graph     train one of the examples
//	fusec generate novel.graph                  let a language model write
//	fusec launch --devices 2 -- program         start a program once for each device
//	fusec bench model.graph                     time it against Gorgonia's TapeMachine on the same graph
//	fusec bench model.graph --levels            time it at each level of fusion
//	fusec bench matmul --ladder                 time matrix multiplication, every variant
//	fusec bench attention --ladder              time attention, every variant
//	fusec bench all --history FILE              time all there is, and keep the figures
//	fusec bench report FILE                     draw the figures that were kept, and name what changed
//	fusec bench moe                             time mixtures of experts over their number
//	fusec bench loader                          time the loader of mini-batches
//	fusec bench gpu                             time products, attention, norms, convolutions and training on a GPU
//	fusec bench group                           time the participants of a group, a GPU each
//	fusec tune model.graph --target cuda        find out by measuring how a GPU's matrix products are best computed
//	fusec fpga build --board ecp5-85f           build an overlay into a bitstream
//	fusec fpga plan model.graph                 what a model takes on hardware that need not exist
//	fusec completion bash                       the script by which a shell completes commands and flags
//	fusec man -o DIR                            manual pages
//	fusec doctor                                what this machine offers
//
// A model is a file model.graph with its weights beside it in model.safetensors, as fusec.Save writes them, or a model in the
// ONNX format. Each command explains itself with --help.
//
// Results go to standard output, errors to standard error. The exit code is 0 if all went well, 1 for a failure and 2
// for wrong usage. Files are replaced whole or left alone.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"fusec/cmd/internal/cli"
)

// grace is how long an interrupted command may take to come to a clean end: a step of training and its checkpoint.
const grace = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	done := make(chan int, 1)
	go func() { done <- cli.RunCommandLine(ctx, commands(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr) }()
	select {
	case code := <-done:
		os.Exit(code)
	case <-ctx.Done():
	}
	stop() // a second signal ends the process at once
	select {
	case code := <-done:
		os.Exit(code)
	case <-time.After(grace):
		fmt.Fprintln(os.Stderr, "fusec: interrupted")
		os.Exit(cli.ExitFailure)
	}
}
