package link_test

import (
	"context"
	"strings"
	"testing"

	"fusec/fpga"
	"fusec/fpga/isa"
	"fusec/fpga/link"
)

func TestOpen(t *testing.T) {
	for spec, want := range map[string]string{
		"":                       "no kind",
		"usb":                    `link "usb": no kind "usb" (want sim, sim:lib, model, serial:DEVICE[@SPEED] or`,
		"sim:x":                  `sim takes no "x"`,
		"model:lib":              `model takes no "lib"`,
		"model@":                 "nothing follows the @",
		"model@big":              `no overlay is called "big": there are sim8,`,
		"serial":                 "no device, such as serial:/dev/ttyUSB1",
		"serial:":                "no device",
		"serial:/dev/null@fast":  `"fast" is no speed`,
		"serial:/dev/null@12345": "12345 bit/s: want one of",
		"serial:/no/such/tty":    "serial:/no/such/tty: open: open /no/such/tty: no such file",
		"xdma:":                  "no device, such as xdma:/dev/xdma0",
		"xdma:/dev/xdma0@sim8":   "a card tells its overlay by itself",
		"xdma:/no/such/card":     "xdma:/no/such/card: open: open /no/such/card_user: no such file",
	} {
		if l, err := link.Open(context.Background(), spec, link.Options{}); err == nil ||
			!strings.Contains(err.Error(), want) || l != nil {
			t.Errorf("%q: %v, %v, want error %q", spec, l, err, want)
		}
	}
	for _, name := range isa.Overlays() {
		cfg, err := isa.Overlay(name)
		if err != nil {
			t.Fatal(err)
		}
		l, err := link.Open(context.Background(), "model@"+name, link.Options{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := fpga.Open(l)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Name = "model"
		if m.Config() != cfg {
			t.Errorf("%s: %+v, want %+v", name, m.Config(), cfg)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
}
