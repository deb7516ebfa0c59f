package link

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"fusec/fpga/isa"
	"fusec/fpga/model"
	"fusec/fpga/sim"
)

// Specs are the forms of a link's description, for messages and help.
const Specs = "sim, sim:lib, model, serial:DEVICE[@SPEED] or xdma:DEVICE; " +
	"@OVERLAY behind the first three names the overlay"

// DefaultSpeed is a serial line's rate in bit/s where none is given.
const DefaultSpeed = 115200

// Open opens the link that spec describes:
//
//	sim                     the simulator, built on first use, in a process of its own
//	sim:lib                 the same as a shared library in this process
//	model                   the overlay in Go (package model): the same results, no cycles
//	serial:/dev/ttyUSB1     a board on a serial line, @SPEED behind it if not of 115200 bit/s
//	xdma:/dev/xdma0         a card behind the XDMA driver's character devices
//
// The first three take the overlay's name behind an @, such as sim@sim16, if Options.Config does not say it.
func Open(ctx context.Context, spec string, o Options) (Link, error) {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("link %q: %s (want %s)", spec, fmt.Sprintf(format, args...), Specs)
	}
	place, suffix := spec, ""
	if i := strings.LastIndexByte(spec, '@'); i >= 0 {
		place, suffix = spec[:i], spec[i+1:]
		if suffix == "" {
			return nil, bad("nothing follows the @")
		}
	}
	kind, device, _ := strings.Cut(place, ":")
	switch kind {
	case "serial":
		speed := DefaultSpeed
		if suffix != "" {
			var err error
			if speed, err = strconv.Atoi(suffix); err != nil {
				return nil, bad("%q is no speed", suffix)
			}
		}
		if device == "" {
			return nil, bad("no device, such as serial:/dev/ttyUSB1")
		}
		return opened(openSerial(device, speed, o))
	case "xdma":
		if device == "" {
			return nil, bad("no device, such as xdma:/dev/xdma0")
		}
		if suffix != "" {
			return nil, bad("a card tells its overlay by itself")
		}
		return opened(openXDMA(device, o))
	case "sim", "model":
		if device != "" && (kind != "sim" || device != "lib") {
			return nil, bad("%s takes no %q", kind, device)
		}
	default:
		return nil, bad("no kind %q", kind)
	}
	cfg := o.Config
	if cfg.Name == "" || suffix != "" {
		if suffix == "" {
			suffix = isa.Overlays()[0]
		}
		var err error
		if cfg, err = isa.Overlay(suffix); err != nil {
			return nil, bad("%v", err)
		}
	}
	if kind == "model" {
		return opened(model.New(cfg, model.Options{Memory: o.Memory}))
	}
	built, err := sim.Build(ctx, cfg, sim.Options{Log: o.Log})
	if err != nil {
		return nil, err
	}
	if device == "lib" {
		return opened(openLibrary(built.Library, o))
	}
	return opened(StartProcess(built.Program, o))
}

// opened converts the result of an opening function to a Link, nil after an error.
func opened[L Link](l L, err error) (Link, error) {
	if err != nil {
		return nil, err
	}
	return l, nil
}
