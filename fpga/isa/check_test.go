package isa

import (
	"errors"
	"strings"
	"testing"
)

// TestVerify breaks commands that are right in one field, which the fault has to name.
func TestVerify(t *testing.T) {
	c := overlays[0]
	small, err := Overlay("hx8k")
	if err != nil {
		t.Fatal(err)
	}
	const limit = 1 << 16
	load := Load{Space: SpaceX, Rows: 9, Words: 2, Stride: 16, Panel: 2}
	store := Store{Rows: 9, Words: 2, Stride: 16, Panel: 2}
	gemm := Gemm{Words: 4, Panels: 2, Tiles: 3, XPanel: 4, WPanel: 4, Out: Out{Panel: 3}}
	attention := Attention{First: true, Last: true, Dim: 8, QPanels: 2, QPanel: 8, Keys: 70, VPanel: 9, K: 100,
		Panel: 8}
	vector := Vector{Words: 4, Panels: 2, XPanel: 4, Out: Out{Panel: 4}}
	route := Route{First: true, Rows: 20, Experts: 64, TopK: 2, XPanel: 16}
	for _, cmd := range []Command{&load, &store, &gemm, &attention, &vector, &route, &End{}, &Barrier{}, &Stamp{
		Addr: limit - 16}} {
		if fault := c.Verify(cmd, limit); fault != nil {
			t.Errorf("%s: %v", Text(cmd), fault)
		}
	}
	change := func(cmd Command, set func(Command)) Command {
		b, err := Encode(nil, cmd)
		if err != nil {
			t.Fatal(err)
		}
		d, err := Decode(b)
		if err != nil {
			t.Fatal(err)
		}
		set(d)
		return d
	}
	for _, w := range []struct {
		c     Config
		field string
		code  Error
		cmd   Command
	}{
		{c, "Space", ErrScratch, change(&load, func(d Command) { d.(*Load).Space = 5 })},
		{c, "Rows", ErrCount, change(&load, func(d Command) { d.(*Load).Rows = 0 })},
		{c, "Stride", ErrMemory, change(&load, func(d Command) { d.(*Load).Stride = 12 })},
		{c, "Addr", ErrMemory, change(&load, func(d Command) { d.(*Load).Addr = limit - 136 })},
		{c, "Base", ErrScratch, change(&load, func(d Command) { d.(*Load).Base = 1021 })},
		{c, "List", ErrScratch, change(&load, func(d Command) { d.(*Load).Skip, d.(*Load).List = true, 64 })},
		{c, "Base", ErrScratch, &Load{Space: SpaceTables, Base: 4, Rows: 1, Words: 32}},
		{c, "Words", ErrCount, &Load{Space: SpaceTables, Rows: 1, Words: 31}},
		{c, "Base", ErrScratch, &Load{Space: SpaceParams, Base: 2047, Rows: 1, Words: 2}},
		{small, "Skip", ErrOp, &Load{Space: SpaceX, Rows: 1, Words: 1, Skip: true}},
		{c, "Space", ErrScratch, change(&store, func(d Command) { d.(*Store).Space = SpaceW })},
		{c, "TopK", ErrCount, change(&store, func(d Command) { d.(*Store).Scatter = true })},
		{c, "Addr", ErrMemory, &Stamp{Addr: limit - 8}},
		{c, "Words", ErrCount, change(&gemm, func(d Command) { d.(*Gemm).Words = 0 })},
		{c, "Tiles", ErrCount, change(&gemm, func(d Command) { d.(*Gemm).Panels, d.(*Gemm).Hold = 1, true })},
		{c, "X", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).X = 1017 })},
		{c, "W", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).W = 1013 })},
		{c, "Base", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).Wide, d.(*Gemm).Base = true, 1016 })},
		{c, "Res", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).Residual, d.(*Gemm).Res = true, 1022 })},
		{c, "Param", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).Param = 2025 })},
		{c, "Table", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).Table = 5 })},
		{c, "Table", ErrOp, change(&gemm, func(d Command) { d.(*Gemm).Wide, d.(*Gemm).Table = true, 1 })},
		{c, "List", ErrScratch, change(&gemm, func(d Command) { d.(*Gemm).Listed, d.(*Gemm).List = true, 64 })},
		{small, "Attention", ErrOp, &attention},
		{c, "Dim", ErrCount, change(&attention, func(d Command) { d.(*Attention).Dim = 17 })},
		{c, "QPanels", ErrCount, change(&attention, func(d Command) { d.(*Attention).QPanels = 5 })},
		{c, "ScoreMul", ErrCount, change(&attention, func(d Command) { d.(*Attention).ScoreMul = 1 << 15 })},
		{c, "X", ErrScratch, change(&attention, func(d Command) { d.(*Attention).X = 1009 })},
		{c, "K", ErrScratch, change(&attention, func(d Command) { d.(*Attention).K = 953 })},
		{c, "V", ErrScratch, change(&attention, func(d Command) { d.(*Attention).V = 953 })},
		{c, "Base", ErrScratch, change(&attention, func(d Command) { d.(*Attention).Base = 1009 })},
		{c, "Kind", ErrOp, change(&vector, func(d Command) { d.(*Vector).Kind = 5 })},
		{small, "Kind", ErrOp, change(&vector, func(d Command) { d.(*Vector).Kind = VectorRMSNorm })},
		{c, "Count", ErrCount, change(&vector, func(d Command) {
			d.(*Vector).Kind, d.(*Vector).Count = VectorLayerNorm,
				33
		})},
		{c, "Count", ErrScratch, change(&vector, func(d Command) {
			d.(*Vector).Kind, d.(*Vector).TopK,
				d.(*Vector).Count = VectorCombine, 1, 1009
		})},
		{c, "Residual", ErrOp, change(&vector, func(d Command) {
			d.(*Vector).Kind, d.(*Vector).Residual = VectorMul,
				true
		})},
		{c, "Param", ErrScratch, change(&vector, func(d Command) { d.(*Vector).Param = 2017 })},
		{small, "Route", ErrOp, &route},
		{c, "TopK", ErrCount, change(&route, func(d Command) { d.(*Route).Experts = 1 })},
		{c, "Token", ErrScratch, change(&route, func(d Command) { d.(*Route).Token = 1005 })},
	} {
		fault := w.c.Verify(w.cmd, limit)
		if fault == nil || fault.Field != w.field || fault.Code != w.code {
			t.Errorf("%s: %+v, want %s, code %d", Text(w.cmd), fault, w.field, w.code)
			continue
		}
		if !errors.Is(fault, w.code) || !strings.HasPrefix(fault.Error(), w.field+": ") {
			t.Errorf("%v", fault)
		}
	}
	// What a list or Hold leaves out is not looked at; OneParam needs one record.
	for _, cmd := range []Command{
		change(&load, func(d Command) { d.(*Load).Gather, d.(*Load).Addr = true, limit-8 }),
		change(&gemm, func(d Command) {
			d.(*Gemm).Hold, d.(*Gemm).Panels, d.(*Gemm).Tiles, d.(*Gemm).Base = true, 1, 1,
				1024
		}),
		change(&vector, func(d Command) { d.(*Vector).OneParam, d.(*Vector).Param = true, 2047 }),
		change(&gemm, func(d Command) { d.(*Gemm).RowParam, d.(*Gemm).Param = true, 2032 }),
	} {
		if fault := c.Verify(cmd, limit); fault != nil {
			t.Errorf("%s: %v", Text(cmd), fault)
		}
	}
}
