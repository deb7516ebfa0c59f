package cli

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"fusec"
	"fusec/lowering"
)

// FlagSet is a flag.FlagSet whose flags may follow arguments and whose errors help.
type FlagSet struct {
	*flag.FlagSet
	wide    bool
	aliases map[string][]string // other names of a flag, which the help lists beside it
	values  map[string]func() []string
}

func newFlagSet(name string) *FlagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	return &FlagSet{FlagSet: f, aliases: map[string][]string{}, values: map[string]func() []string{}}
}

// Values tells what the value of a flag may be, for completion.
func (f *FlagSet) Values(name string, known func() []string) { f.values[name] = known }

// isBool reports whether a flag takes no value.
func isBool(k *flag.Flag) bool {
	b, ok := k.Value.(interface{ IsBoolFlag() bool })
	return ok && b.IsBoolFlag()
}

// parseAll reads the flags and returns the other arguments. After -- nothing is a flag.
func (f *FlagSet) parseAll(args []string) (rest []string, err error) {
	for {
		if err := f.Parse(args); err != nil {
			return nil, f.explain(err)
		}
		left := f.Args()
		if n := len(args) - len(left); n > 0 && args[n-1] == "--" {
			return append(rest, left...), nil
		}
		if len(left) == 0 {
			return rest, nil
		}
		rest, args = append(rest, left[0]), left[1:]
	}
}

// explain turns an error of package flag into one for the user.
func (f *FlagSet) explain(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	message := err.Error()
	if name, ok := strings.CutPrefix(message, "flag provided but not defined: -"); ok {
		name = strings.TrimLeft(name, "-")
		var known []string
		f.VisitAll(func(k *flag.Flag) { known = append(known, k.Name) })
		return Usage("%s has no flag %s%s", f.Name(), dashed(name), suggestFlag(name, known))
	}
	if name, ok := strings.CutPrefix(message, "flag needs an argument: -"); ok {
		return Usage("flag %s needs a value", dashed(name))
	}
	// invalid value "x" for flag -threads: reason
	if value, rest, ok := strings.Cut(message, " for flag -"); ok {
		if name, reason, ok := strings.Cut(rest, ": "); ok {
			if strings.HasPrefix(reason, "unknown ") { // it names the value
				return Usage("%s", reason)
			}
			value = strings.TrimPrefix(value, "invalid value ")
			return Usage("%s %s: %s", dashed(name), strings.Trim(value, `"`), reason)
		}
	}
	// invalid boolean value "x" for -all: reason
	if value, rest, ok := strings.Cut(strings.TrimPrefix(message, "invalid boolean value "), " for -"); ok {
		name, _, _ := strings.Cut(rest, ":")
		return Usage("%s %s: want true or false", dashed(name), strings.Trim(value, `"`))
	}
	return Usage("%s", message)
}

// dashed is a flag as users write it.
func dashed(name string) string {
	if utf8.RuneCountInString(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Alias gives a flag that is declared another name.
func (f *FlagSet) Alias(name, alias string) {
	k := f.Lookup(name)
	f.Var(k.Value, alias, k.Usage)
	f.aliases[name] = append(f.aliases[name], alias)
	f.values[alias] = f.values[name]
}

// Output declares the flag that names the file to write.
func (f *FlagSet) Output(p *string, help string) {
	f.StringVar(p, "o", "", help)
	f.Alias("o", "output")
}

// Threads declares the flag that is the number of cores to run on.
func (f *FlagSet) Threads(p *int, def string) {
	f.Cores(p, "threads", "run on `N` cores (default "+def+")")
	f.Alias("threads", "workers")
}

// Count declares a flag that is a whole number of at least least.
func (f *FlagSet) Count(p *int, name string, least int, help string) {
	f.Func(name, help, func(s string) error {
		n, err := WholeNumber(s, least)
		if err == nil {
			*p = n
		}
		return err
	})
}

// WholeNumber reads a whole number of at least least.
func WholeNumber(s string, least int) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < least {
		return 0, fmt.Errorf("want a whole number of at least %d", least)
	}
	return n, nil
}

// Cores declares a flag that is a number of cores.
func (f *FlagSet) Cores(p *int, name, help string) {
	f.Func(name, help, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > fusec.MaxWorkers {
			return fmt.Errorf("want a whole number of at least 1 and at most %d", fusec.MaxWorkers)
		}
		*p = n
		return nil
	})
}

// Seed declares a flag that is a seed. It returns whether the flag was given.
func (f *FlagSet) Seed(p *uint64, help string) *bool {
	given := new(bool)
	f.Func("seed", help, func(s string) error {
		v, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			return errors.New("want a whole number from 0 to 18446744073709551615")
		}
		*p, *given = v, true
		return nil
	})
	return given
}

// Seconds declares a flag that is a positive number of seconds.
func (f *FlagSet) Seconds(p *float64, name, help string) {
	f.Func(name, help, func(s string) (err error) {
		*p, err = ParseSeconds(s)
		return err
	})
}

// maxSeconds bounds how long one may ask to measure.
const maxSeconds = 3600

func ParseSeconds(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v <= maxSeconds) {
		return 0, fmt.Errorf("want a number of seconds, more than 0 and at most %d", maxSeconds)
	}
	return v, nil
}

// Targets lists the targets of which is is true.
func Targets(is func(lowering.Target) bool) []string {
	return slices.DeleteFunc(fusec.Targets(), func(name string) bool {
		t, _ := fusec.TargetNamed(name)
		return !is(t)
	})
}

// Target declares the flag that names a target: one of among, or of all if there are none. The first is the default. It returns
// whether the flag was given.
func (f *FlagSet) Target(p *string, among ...string) *bool {
	if len(among) == 0 {
		among = fusec.Targets()
	}
	f.Values("target", func() []string { return among })
	help := fmt.Sprintf("compile for the `TARGET` %s (default %s)", Either(among), among[0])
	for _, name := range among {
		if t, _ := fusec.TargetNamed(name); t.Device != "" {
			help += fmt.Sprintf("; %s:1 is the second %s, and %[1]s:0,%[1]s:1 are two participants", name, t.Device)
		}
	}
	given := new(bool)
	f.Func("target", help, func(s string) error {
		for device := range strings.SplitSeq(s, ",") {
			if name, _, _ := strings.Cut(device, ":"); !slices.Contains(among, name) {
				return errors.New(Unknown("target", device, among))
			}
		}
		*p, *given = s, true
		return nil
	})
	return given
}

// Precision declares the flag that names a precision.
func (f *FlagSet) Precision(p *fusec.Precision) {
	names := []string{"f32", "tf32", "bf16", "f16"}
	f.Values("precision", func() []string { return names })
	f.Func("precision", "let contractions round to `NAME`: "+Either(names)+" (default f32)", func(s string) error {
		v, err := fusec.ParsePrecision(s)
		if err != nil {
			return errors.New(Unknown("precision", s, names))
		}
		*p = v
		return nil
	})
}

// Names declares a flag that may be repeated and takes names, of the kind what, separated by commas.
func (f *FlagSet) Names(p *[]string, name, what string, known func() []string, help string) {
	f.Values(name, known)
	f.Func(name, help, func(s string) error {
		for _, n := range strings.Split(s, ",") {
			n = strings.TrimSpace(n)
			if list := known(); !slices.Contains(list, n) {
				return errors.New(Unknown(what, n, list))
			}
			*p = append(*p, n)
		}
		return nil
	})
}

// Choice declares a flag that is one of a few names.
func (f *FlagSet) Choice(p *string, name string, known []string, help string) {
	f.Values(name, func() []string { return known })
	f.Func(name, help, func(s string) error {
		if !slices.Contains(known, s) {
			return errors.New(Unknown(name, s, known))
		}
		*p = s
		return nil
	})
}

// rows lists the flags for the help.
func (f *FlagSet) rows() (rows []row) {
	alias := map[string]bool{}
	for _, list := range f.aliases {
		for _, a := range list {
			alias[a] = true
		}
	}
	f.VisitAll(func(k *flag.Flag) {
		if alias[k.Name] {
			return
		}
		kind, help := flag.UnquoteUsage(k)
		r := row{dashed(k.Name), help}
		for _, a := range f.aliases[k.Name] {
			r.flag += ", " + dashed(a)
		}
		if !isBool(k) {
			r.flag += " " + kind
		}
		rows = append(rows, r)
	})
	return rows
}

// ParseBytes reads a size such as 512MiB, 2GiB or 1000000.
func ParseBytes(s string) (int64, error) {
	number, unit := s, int64(1)
	for i, suffix := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if n, ok := strings.CutSuffix(s, suffix); ok {
			number, unit = n, 1<<(10*(i+1))
		}
	}
	n, err := strconv.ParseInt(strings.TrimSpace(number), 10, 64)
	if err != nil || n < 1 || n > (1<<62)/unit {
		return 0, errors.New("want a number of bytes such as 512MiB or 2GiB")
	}
	return n * unit, nil
}
