package inspect

import (
	"path/filepath"
	"slices"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph/dot"
	"fusec/lowering"
)

// coded are the targets that show the code that they make of programs: a stage each, behind the last pass.
func coded() []lowering.Target {
	return slices.DeleteFunc(modelio.Targets(), func(t lowering.Target) bool { return t.Code == "" })
}

// codeStages are the names of those stages.
func codeStages() (names []string) {
	for _, t := range coded() {
		names = append(names, t.Name)
	}
	return names
}

// dumpCode writes the code of a target.
func (d *dumper) dumpCode(e *cli.Env, path string, t lowering.Target) error {
	ext := strings.ToLower(filepath.Ext(d.out))
	switch {
	case slices.ContainsFunc(dot.Formats(), func(f dot.Format) bool { return f != dot.FormatText && f.Ext() == ext }):
		return cli.Usage("-o %s: --stage %s is text, which %s is not", d.out, t.Name, ext)
	case d.all || d.measured:
		return cli.Usage("--stage %s is one text, made without running: --all and --measured are not for it", t.Name)
	case d.format != "" && t.CodeFormat == "":
		return cli.Usage("--stage %s is text: --format is not for it", t.Name)
	case d.format != "" && d.format != t.CodeFormat:
		return cli.Usage("--stage %s is text: --format %s shows what it compiles to, and no other format is for it", t.Name,
			t.CodeFormat)
	}
	d.compile.Target = t.Name
	g, err := d.compile.Load(e, path)
	if err != nil {
		return err
	}
	if d.compile.Target != t.Name {
		return cli.Usage("--stage %s: the model was compiled for target %s", t.Name, d.compile.Target)
	}
	if err := d.compile.Check(); err != nil {
		return err
	}
	device, p, err := modelio.PlanFor[lowering.Coder](g, d.compile.Options()...)
	if err != nil {
		return err
	}
	text, err := device.Code(p, d.format)
	if err != nil {
		return err
	}
	if d.out != "" && d.out != "-" {
		return cli.WriteFile(d.out, []byte(text))
	}
	return e.Print(text)
}
