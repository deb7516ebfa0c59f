package main

import (
	"fmt"
	"os"
	"testing"

	_ "fusec/graph/graphtest/untuned"
	"fusec/kernels/ref"
)

// TestMish compares the strips and the gradient with the value of each element.
func TestMish(t *testing.T) {
	if err := ref.CheckCustom("mish", -20, 20); err != nil {
		t.Error(err)
	}
}

// Example trains on the processor, and on the CUDA emulator by the other body.
func Example() {
	for _, target := range []string{"cpu", "emulator"} {
		fmt.Println("on", target)
		if err := train(os.Stdout, target); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// on cpu
	// step  0: cost 1.178
	// step 10: cost 0.596
	// step 20: cost 0.505
	// step 30: cost 0.476
	// mish runs in a launch of kind linear
	// on emulator
	// step  0: cost 1.178
	// step 10: cost 0.596
	// step 20: cost 0.505
	// step 30: cost 0.476
	// mish runs in a launch of kind linear
}
