package main

import (
	"context"

	"fusec/fpga/isa"
	"fusec/fpga/link"
	"fusec/fpga/model"
	"fusec/lowering"
	"fusec/lowering/cuda"
	"fusec/lowering/fpga"
)

// openCUDA is a device on the emulator, or on a GPU with the tag gpu.
func openCUDA(opts ...cuda.Option) (lowering.Device, error) {
	g, c, err := openGPU()
	if err != nil {
		return nil, err
	}
	return cuda.New(append(opts, cuda.On(g, c))...), nil
}

// openFPGA is the overlay's model, which refuses a program whose result depends on the pace of its engines.
func openFPGA() (lowering.Device, error) {
	return fpga.New(fpga.Over(func(_ context.Context, cfg isa.Config, memory int64) (link.Link, error) {
		return model.New(cfg, model.Options{Memory: memory, Races: true})
	})), nil
}
