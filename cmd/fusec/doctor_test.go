package main

import (
	"encoding/json"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/lowering/local"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDoctor(t *testing.T) {
	out := clitest.Good(t, "doctor")
	for _, want := range []string{"processor", "targets: cpu", "vector kernels", "self-test", "right, ", "NVIDIA driver", "nvcc",
		"verilator", "g++", "yosys", "nextpnr-ice40", "nextpnr-ecp5"} {
		if !strings.Contains(out, want) {
			t.Errorf("lacks %q:\n%s", want, out)
		}
	}
	var rep doctorReport
	if err := json.Unmarshal([]byte(clitest.Good(t, "doctor", "--json")), &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Schema != "fusec.doctor/1" || rep.Machine.Cores < 1 || rep.Machine.GEMM == "" || rep.Machine.Panels == "" ||
		len(rep.Checks) < 8 {
		t.Errorf("%+v", rep)
	}
	for _, c := range rep.Checks {
		if c.Name == "" || c.For == "" || c.Detail == "" || c.State != stateOK && c.State != stateMissing {
			t.Errorf("%+v", c)
		}
	}
}

func TestDoctorFindsTools(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{"good": "echo; echo ' good 1.2 '; echo more",
		"release": "echo first; echo release 12.4", "broken": "exit 3"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script+"\n"), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("PATH", dir)
	for name, want := range map[string]check{
		"good":    {Name: "good", State: stateOK, Detail: "good 1.2", For: "tests"},
		"release": {Name: "release", State: stateOK, Detail: "release 12.4", For: "tests"},
		"broken":  {Name: "broken", State: stateOK, Detail: filepath.Join(dir, "broken"), For: "tests"},
		"absent":  {Name: "absent", State: stateMissing, Detail: "was not found on the path", For: "tests"},
	} {
		if got := (tool{name, "tests", nil}).check(t.Context()); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

func TestDoctorOfOtherMachines(t *testing.T) {
	if c := vectorCheck(cli.Machine{GEMM: "portable"}); c.State != stateMissing {
		t.Errorf("%+v", c)
	}
	rep := doctorReport{Machine: cli.Machine{CPU: "abacus", Cores: 1}}
	if out := rep.text(); !strings.Contains(out, "abacus, 1 core\n") || !strings.Contains(out, "none that matter") ||
		strings.Contains(out, "memory") {
		t.Errorf("report:\n%s", out)
	}
	if m := local.Fields(filepath.Join(t.TempDir(), "none")); len(m) != 0 {
		t.Errorf("%v", m)
	}
	if n := cli.Kibibytes("a lot"); n != 0 {
		t.Error(n)
	}
}
