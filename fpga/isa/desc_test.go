package isa

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
)

// random fills a command's fields with any values that fit.
func random(r *rand.Rand, c Command) Command {
	v := reflect.ValueOf(c).Elem()
	for _, f := range layouts[c.Op()] {
		bits := r.Uint32() >> (32 - f.width)
		if r.IntN(4) == 0 {
			bits = [...]uint32{0, 1, 1<<f.width - 1, 1 << (f.width - 1)}[r.IntN(4)]
		}
		switch x := v.FieldByIndex(f.index); {
		case x.Kind() == reflect.Bool:
			x.SetBool(bits != 0)
		case x.CanInt():
			x.SetInt(int64(int32(bits<<(32-f.width)) >> (32 - f.width)))
		default:
			x.SetUint(uint64(bits))
		}
	}
	return c
}

// TestRoundTrip encodes and decodes every command with any values, and looks at the layout: no two fields share a bit.
func TestRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for o := range OpRoute + 1 {
		used := [DescBytes / 4]uint32{0: 15}
		for _, f := range layouts[o] {
			m := uint32((uint64(1)<<f.width - 1) << f.low)
			if used[f.word]&m != 0 || f.low+f.width > 32 {
				t.Errorf("%v.%s lies on another field or behind its word", o, f.name)
			}
			used[f.word] |= m
			kind := reflect.TypeOf(New(o)).Elem().FieldByIndex(f.index).Type
			if kind.Kind() != reflect.Bool && kind.Bits() < f.width {
				t.Errorf("%v.%s: %v holds no %d bits", o, f.name, kind, f.width)
			}
		}
		for range 100 {
			want := random(r, New(o))
			b, err := Encode([]byte{9}, want)
			if err != nil || len(b) != 1+DescBytes || b[0] != 9 {
				t.Fatalf("%s: %d bytes, %v", Text(want), len(b), err)
			}
			got, err := Decode(b[1:])
			if err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%s comes back as %v, %v", Text(want), got, err)
			}
		}
	}
}

func TestEncodeErrors(t *testing.T) {
	for want, c := range map[string]Command{
		"load: Space = 8: more than 3 bits":       &Load{Space: 8},
		"store: TopK = 9: more than 3 bits":       &Store{TopK: 9},
		"gemm: Table = 8: more than 3 bits":       &Gemm{Out: Out{Table: 8}},
		"attention: OutSh = 64: more than 6 bits": &Attention{OutSh: 64},
		"vector: Kind = 8: more than 3 bits":      &Vector{Kind: 8},
		"route: Experts = 512: more than 9 bits":  &Route{Experts: 512},
	} {
		if b, err := Encode(nil, c); err == nil || err.Error() != want || b != nil {
			t.Errorf("%v, error %v, want %q", b, err, want)
		}
	}
	for want, b := range map[string][]byte{
		"a descriptor has 32 bytes, not 31": make([]byte, 31),
		"no operation has code 9":           append([]byte{0xf9}, make([]byte, 31)...),
	} {
		if c, err := Decode(b); err == nil || err.Error() != want {
			t.Errorf("%v, error %v, want %q", c, err, want)
		}
	}
}

func TestText(t *testing.T) {
	for want, c := range map[string]Command{
		"end":                     &End{},
		"barrier Wait=3 Post=0,7": &Barrier{Sync{Wait: 8, Post: 129}},
		"load Wait=1 Gather Space=Y Addr=0x100 Stride=64 Rows=8 Words=2 List=3": &Load{Sync: Sync{Wait: 2},
			Gather: true,
			Addr:   256, Stride: 64, Rows: 8, Words: 2, List: 3},
		"load Space=params Rows=1 Words=4": &Load{Space: SpaceParams, Rows: 1, Words: 4},
		"load Space=space6":                &Load{Space: 6},
		"store Post=2 Scatter Space=X Addr=0xffffffff TopK=2": &Store{Sync: Sync{Post: 4}, Scatter: true,
			Space: SpaceX, Addr: 1<<32 - 1, TopK: 2},
		"stamp Addr=0x40": &Stamp{Addr: 64},
		"gemm Residual ReLU Space=W Base=5 ResMul=4096 Zero=-3 Table=1 Hold X=1 Words=2 Panels=3 Tiles=4": &Gemm{
			Out: Out{Residual: true, ReLU: true, Space: SpaceW, Base: 5, ResMul: 4096, Zero: -3, Table: 1}, Hold: true,
			X: 1, Words: 2, Panels: 3, Tiles: 4},
		"attention First Last Causal Space=Y Dim=8 QPanels=1 Keys=64 Diagonal=-2": &Attention{First: true, Last: true,
			Causal: true,
			Dim:    8, QPanels: 1, Keys: 64, Diagonal: -2},
		"vector Space=Y Kind=affine": &Vector{},
		"vector Space=X OneParam Kind=layernorm": &Vector{Out: Out{Space: SpaceX}, OneParam: true,
			Kind: VectorLayerNorm},
		"vector Space=Y Kind=vector7":              &Vector{Kind: 7},
		"route First Renormalise Experts=4 TopK=2": &Route{First: true, Renormalise: true, Experts: 4, TopK: 2},
	} {
		if got := Text(c); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if s := fmt.Sprint(Op(12), Space(7), VectorOp(6), Error(9)); s != "op12 space7 vector6 error 9" {
		t.Error(s)
	}
	for e := range ErrWatchdog + 1 {
		if e.Error() == "" || strings.HasPrefix(e.Error(), "error") {
			t.Errorf("error %d has no text", uint32(e))
		}
	}
}

// FuzzDecode decodes any bytes: what can be decoded is encoded again to a descriptor that means the same.
func FuzzDecode(f *testing.F) {
	r := rand.New(rand.NewPCG(3, 4))
	for o := range OpRoute + 1 {
		b, err := Encode(nil, random(r, New(o)))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte{})
	cfg := overlays[0]
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Decode(b)
		if err != nil {
			return
		}
		again, err := Encode(nil, c)
		if err != nil {
			t.Fatalf("%s: %v", Text(c), err)
		}
		d, err := Decode(again)
		if err != nil || !reflect.DeepEqual(c, d) {
			t.Fatalf("%s comes back as %v, %v", Text(c), d, err)
		}
		if third, _ := Encode(nil, d); !bytes.Equal(again, third) {
			t.Fatalf("%s has two encodings", Text(c))
		}
		if fault := cfg.Verify(c, 1<<20); fault != nil && (fault.Field == "" || fault.Code == ErrNone) {
			t.Fatalf("%s: fault %+v", Text(c), fault)
		}
	})
}
