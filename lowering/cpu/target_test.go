package cpu

import (
	"reflect"
	"strings"
	"testing"

	"fusec/graph/precision"
	"fusec/lowering"
)

// The target makes devices of its options, which share programs if they are alike.
func TestTarget(t *testing.T) {
	open := func(s lowering.Setup) lowering.Device {
		t.Helper()
		s.Name = Target.Name
		d, err := Target.Open(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	block := []lowering.TargetOption{AttentionBlock(8)}
	a := open(lowering.Setup{Workers: 3, Options: block}).(*Device)
	if a.Workers() != 3 || a.attention.Keys != 8 {
		t.Errorf("the device is %+v", a)
	}
	if b := open(lowering.Setup{Workers: 3, Options: block}); !reflect.DeepEqual(a.Shared(), b.Shared()) {
		t.Error("equal devices do not share")
	}
	if b := open(lowering.Setup{Workers: 3}); reflect.DeepEqual(a.Shared(), b.Shared()) {
		t.Error("devices with other blocks share")
	}
	for want, s := range map[string]lowering.Setup{
		"computes in f32":    {Precision: precision.TF32},
		"AttentionBlock(-2)": {Options: []lowering.TargetOption{AttentionBlock(-2)}},
	} {
		if _, err := Target.Open(s); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
