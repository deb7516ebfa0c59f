package arm64

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// every returns a function with each instruction that is encoded here, in each arrangement that it has.
func every() *Func {
	f := NewFile().Func("every", "func()")
	v := func() operand.Op { return Vector() }
	of := func(s sizing) []Arrangement {
		return map[sizing][]Arrangement{logical: {B16}, floating: {S4, D2}, integer: {B16, H8, S4, D2}}[s]
	}
	missing := map[string]bool{"smax.2d": true, "umin.2d": true} // which Arm does not have
	for name, e := range three {
		for _, a := range of(e.sizing) {
			if !missing[name+"."+a.String()] {
				f.Three(name, a, v(), v(), v())
			}
		}
	}
	for name, e := range two {
		for _, a := range of(e.sizing) {
			f.Two(name, a, v(), v())
		}
	}
	for name := range shifts {
		for _, a := range of(integer) {
			for by := uint64(1); by < uint64(a.bits()); by++ {
				f.Shift(name, a, by, v(), v())
			}
		}
	}
	for name, c := range changes {
		sources := []operand.Op{v(), v()}
		f.Change(name[:strings.Index(name, ".")], c.to, v(), sources[:c.sources]...)
	}
	for name := range byElement {
		for at := range 4 {
			f.Element(name, S4, v(), v(), v(), at)
			f.Element(name, D2, v(), v(), v(), at%2)
		}
	}
	for at := range 4 {
		f.Dup(S4, v(), v(), at)
		f.Dup(D2, v(), v(), at%2)
		f.Extract(v(), v(), v(), 1+4*at)
	}
	r := General()
	for _, a := range []Arrangement{S4, D2} {
		f.DupGeneral(a, v(), r)
		f.LoadSplat(a, v(), operand.Mem{Base: r})
	}
	for point := 1; point <= 32; point++ {
		f.FromFixed(point, v(), v())
	}
	f.WidenBF16(false, v(), v())
	f.WidenBF16(true, v(), v())
	f.Lookup(v(), v(), v())
	for at := range 4 {
		for name := range dots {
			f.Dot(name, v(), v(), v(), at)
		}
	}
	f.Greatest(v(), v())
	f.Zero(v())
	f.Move(v(), v())
	f.LoadThird(v(), r)
	f.StoreThird(r, v())
	f.StoreUpper(r, v())
	return f
}

// words are instructions with what a disassembler should print.
type words struct {
	code []byte
	text []string
}

func (w *words) add(word uint32, text string) {
	w.code = binary.LittleEndian.AppendUint32(w.code, word)
	w.text = append(w.text, text)
}

// compare disassembles the instructions.
func (w *words) compare(t *testing.T) {
	t.Helper()
	const disassembler = "aarch64-linux-gnu-objdump"
	if _, err := exec.LookPath(disassembler); err != nil {
		if os.Getenv("FUSEC_REQUIRE") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	file := filepath.Join(t.TempDir(), "code")
	if err := os.WriteFile(file, w.code, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(disassembler, "-D", "-z", "-b", "binary", "-m", "aarch64", file).Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^ +[0-9a-f]+:\t[0-9a-f]{8} +\t(.*)$`).FindAllStringSubmatch(string(out), -1)
	if len(lines) != len(w.text) {
		t.Fatalf("%d instructions, want %d", len(lines), len(w.text))
	}
	for i, line := range lines {
		got, _, _ := strings.Cut(line[1], " //")
		if got = strings.Join(strings.Fields(got), " "); got != w.text[i] {
			t.Errorf("%#08x is %q, want %q", binary.LittleEndian.Uint32(w.code[4*i:]), got, w.text[i])
		}
	}
}

// TestEncoding compares every instruction with a disassembler, with random registers.
func TestEncoding(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var all words
	for range 20 {
		for _, in := range every().code {
			numbers, names := make([]uint32, len(in.registers)), make([]any, len(in.registers))
			for i, register := range in.registers {
				bound := uint32(32)
				if register.Kind() == reg.KindGP {
					bound = 31 // R31 is something else
				}
				numbers[i] = r.Uint32N(bound)
				for slices.Contains(numbers[:i], numbers[i]) { // ORR of the same is called MOV
					numbers[i] = r.Uint32N(bound)
				}
				names[i] = strconv.Itoa(int(numbers[i]))
			}
			all.add(in.word(numbers), fmt.Sprintf(in.text, names...))
		}
	}
	all.compare(t)
}

// TestGeneratedWords compares every word of the assembly in the packages with its comment.
func TestGeneratedWords(t *testing.T) {
	files, err := filepath.Glob("../../../*/*_arm64.s")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	seen := map[string]bool{}
	var all words
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`(?m)^\tWORD \$0x([0-9a-f]{8}) // (.*)$`).FindAllStringSubmatch(string(text), -1) {
			if seen[m[0]] {
				continue
			}
			seen[m[0]] = true
			word, err := strconv.ParseUint(m[1], 16, 32)
			if err != nil {
				t.Fatal(err)
			}
			all.add(uint32(word), m[2])
		}
	}
	if len(all.text) < 1000 {
		t.Fatalf("%d words only", len(all.text))
	}
	all.compare(t)
}

// TestUsed checks that the generated assembly has every instruction that is encoded here.
func TestUsed(t *testing.T) {
	var all strings.Builder
	files, _ := filepath.Glob("../../../*/*_arm64.s")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	var names []string
	names = slices.AppendSeq(slices.AppendSeq(slices.AppendSeq(names, maps.Keys(three)), maps.Keys(two)), maps.Keys(shifts))
	for name := range changes {
		names = append(names, name[:strings.Index(name, ".")])
	}
	for _, name := range names {
		if !strings.Contains(all.String(), " // "+name+" v") {
			t.Errorf("no kernel has %s", name)
		}
	}
}

// TestWords has some instructions as the manual gives them, for machines without a disassembler.
func TestWords(t *testing.T) {
	f := NewFile().Func("f", "func()")
	v := [3]operand.Op{Vector(), Vector(), Vector()}
	f.Three("fmla", S4, v[0], v[1], v[2])
	f.Element("fmla", S4, v[0], v[1], v[2], 3)
	f.Element("fmla", D2, v[0], v[1], v[2], 1)
	f.Shift("shl", S4, 23, v[0], v[1])
	f.Shift("sshr", S4, 31, v[0], v[1])
	f.Two("fsqrt", D2, v[0], v[1])
	f.Change("fcvtl2", D2, v[0], v[1])
	want := []uint32{0x4e22cc20, 0x4fa21820, 0x4fc21820, 0x4f375420, 0x4f210420, 0x6ee1f820, 0x4e617820}
	for i, in := range f.code {
		if got := in.word([]uint32{0, 1, 2}[:len(in.registers)]); got != want[i] {
			t.Errorf("%s is %#08x, want %#08x", in.text, got, want[i])
		}
	}
}

// TestRefused checks that what does not exist panics, with its name.
func TestRefused(t *testing.T) {
	for want, emit := range map[string]func(*Func){
		"no instruction fcbrt":        func(f *Func) { f.Two("fcbrt", S4, Vector(), Vector()) },
		"no instruction fpow":         func(f *Func) { f.Three("fpow", S4, Vector(), Vector(), Vector()) },
		"shl by 32 of 4s":             func(f *Func) { f.Shift("shl", S4, 32, Vector(), Vector()) },
		"sshr by 0 of 4s":             func(f *Func) { f.Shift("sshr", S4, 0, Vector(), Vector()) },
		"33 bits behind the point":    func(f *Func) { f.FromFixed(33, Vector(), Vector()) },
		"lane 4 of 4s":                func(f *Func) { f.Element("fmla", S4, Vector(), Vector(), Vector(), 4) },
		"no instruction fcvtl to 16b": func(f *Func) { f.Change("fcvtl", B16, Vector(), Vector()) },
		"fdiv by element":             func(f *Func) { f.Element("fdiv", S4, Vector(), Vector(), Vector(), 0) },
		"is not set on every way":     func(f *Func) { f.Copy(General(), General()) },
		"no label nowhere":            func(f *Func) { f.Jump("nowhere") },
		"label twice twice":           func(f *Func) { f.Label("twice"); f.Label("twice") },
		"needs more than 32 registers": func(f *Func) {
			all := make([]reg.VecVirtual, 33)
			for i := range all {
				all[i] = Vector()
				f.Zero(all[i])
			}
			for _, v := range all {
				f.Two("fabs", S4, v, v)
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.Contains(got, want) {
					t.Errorf("%s, want %s", got, want)
				}
			}()
			f := NewFile().Func("f", "func()")
			emit(f)
			f.allocate()
		})
	}
}

// TestAllocation runs random programs, with loops, on virtual registers and on those that they are given: each instruction
// reads the same values.
func TestAllocation(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		f := NewFile().Func("f", "func()")
		variables := make([]reg.GPVirtual, 3+r.IntN(18))
		pick := func() reg.GPVirtual { return variables[r.IntN(len(variables))] }
		for i := range variables {
			variables[i] = General()
			f.Constant(variables[i], i)
		}
		labels := 0
		for range 5 + r.IntN(60) {
			switch r.IntN(5) {
			case 0:
				f.Copy(pick(), pick())
			case 1:
				labels++
				f.Label(fmt.Sprint("l", labels))
			case 2:
				if labels > 0 {
					f.JumpIfZero(pick(), fmt.Sprint("l", 1+r.IntN(labels)))
				}
			default:
				f.Add(pick(), pick(), pick())
			}
		}
		f.Return()
		assigned := f.allocate()
		at := map[string]int{}
		for i, in := range f.code {
			if in.label != "" {
				at[in.label] = i
			}
		}
		virtual, physical := map[reg.ID]int{}, map[uint32]int{}
		for pc, steps := 0, 0; pc < len(f.code) && steps < 500; steps++ {
			in := f.code[pc]
			for _, u := range in.uses {
				if got, want := physical[assigned[u.ID()]], virtual[u.ID()]; got != want {
					t.Fatalf("instruction %d, %s, reads %d, want %d", pc, in.text, got, want)
				}
			}
			for _, d := range in.defs {
				value := r.Int()
				if in.move {
					value = virtual[in.registers[1].ID()]
				}
				virtual[d.ID()], physical[assigned[d.ID()]] = value, value
			}
			pc++
			if in.target != "" && r.IntN(2) == 0 {
				pc = at[in.target]
			}
			if strings.HasPrefix(in.text, "RET") {
				break
			}
		}
		for id, n := range assigned {
			if !slices.Contains(generalRegisters, n) {
				t.Fatalf("register %v is R%d", id, n)
			}
		}
	}
}

// TestFile writes a function with everything that a line may have.
func TestFile(t *testing.T) {
	file := NewFile()
	f := file.Func("scale", "func(x []float32, by float32) (n int)", "scale multiplies x by by.")
	x, n := f.Param("x.base"), f.Param("x.len")
	by := f.ParamSplat(S4, "by")
	v := Vector()
	f.Load(v, file.Constant(1, 2))
	f.Label("loop")
	f.Three("fmul", S4, v, by, operand.Mem{Base: x, Disp: 16})
	f.Store(operand.Mem{Base: x, Index: n, Scale: 4}, v)
	f.SubConstant(n, n, 4)
	f.JumpUnlessZero(n, "loop")
	f.SetResult(n)
	f.Return()
	want := `
#include "textflag.h"

DATA constants<>+0(SB)/8, $0x0000000000000001
DATA constants<>+8(SB)/8, $0x0000000000000002
GLOBL constants<>(SB), RODATA|NOPTR, $16

// func scale(x []float32, by float32) (n int)
TEXT ·scale(SB), NOSPLIT, $0-40
	MOVD $constants<>(SB), R0
	MOVD x_base+0(FP), R1
	MOVD x_len+8(FP), R2
	FMOVS by+24(FP), F0
	WORD $0x4e040400 // dup v0.4s, v0.s[0]
	FMOVQ 0(R0), F1

loop:
	FMOVQ 16(R1), F1
	WORD $0x6e21dc01 // fmul v1.4s, v0.4s, v1.4s
	ADD R2<<2, R1, R0
	FMOVQ F1, 0(R0)
	SUB $4, R2, R2
	CBNZ R2, loop
	MOVD R2, n+32(FP)
	RET
`
	if _, got, _ := strings.Cut(string(file.assembly()), "DO NOT EDIT.\n"); got != want {
		t.Errorf("%s\nwant%s", got, want)
	}
}
