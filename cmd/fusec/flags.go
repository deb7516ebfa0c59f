package main

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
)

// flagSet is a flag.FlagSet whose flags may follow arguments and whose errors help.
type flagSet struct{ *flag.FlagSet }

func newFlagSet(name string) *flagSet {
	f := flag.NewFlagSet(name, flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	return &flagSet{f}
}

// parseAll reads the flags and returns the other arguments. After -- nothing is a flag.
func (f *flagSet) parseAll(args []string) (rest []string, err error) {
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
func (f *flagSet) explain(err error) error {
	if errors.Is(err, flag.ErrHelp) {
		return err
	}
	message := err.Error()
	if name, ok := strings.CutPrefix(message, "flag provided but not defined: -"); ok {
		name = strings.TrimLeft(name, "-")
		var known []string
		f.VisitAll(func(k *flag.Flag) { known = append(known, k.Name) })
		return usage("%s has no flag %s%s", f.Name(), dashed(name), suggestFlag(name, known))
	}
	if name, ok := strings.CutPrefix(message, "flag needs an argument: -"); ok {
		return usage("flag %s needs a value", dashed(name))
	}
	// invalid value "x" for flag -threads: reason
	if value, rest, ok := strings.Cut(message, " for flag -"); ok {
		if name, reason, ok := strings.Cut(rest, ": "); ok {
			value = strings.TrimPrefix(value, "invalid value ")
			return usage("%s %s: %s", dashed(name), strings.Trim(value, `"`), reason)
		}
	}
	// invalid boolean value "x" for -all: reason
	if value, rest, ok := strings.Cut(strings.TrimPrefix(message, "invalid boolean value "), " for -"); ok {
		name, _, _ := strings.Cut(rest, ":")
		return usage("%s %s: want true or false", dashed(name), strings.Trim(value, `"`))
	}
	return usage("%s", message)
}

// dashed is a flag as users write it.
func dashed(name string) string {
	if utf8.RuneCountInString(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// count declares a flag that is a whole number of at least least.
func (f *flagSet) count(p *int, name string, least int, help string) {
	f.Func(name, help, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < least {
			return fmt.Errorf("want a whole number of at least %d", least)
		}
		*p = n
		return nil
	})
}

// cores declares a flag that is a number of cores.
func (f *flagSet) cores(p *int, name, help string) {
	f.Func(name, help, func(s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 || n > fusec.MaxWorkers {
			return fmt.Errorf("want a whole number of at least 1 and at most %d", fusec.MaxWorkers)
		}
		*p = n
		return nil
	})
}

// seed declares a flag that is a seed. It returns whether the flag was given.
func (f *flagSet) seed(p *uint64, help string) *bool {
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

// seconds declares a flag that is a positive number of seconds.
func (f *flagSet) seconds(p *float64, name, help string) {
	f.Func(name, help, func(s string) (err error) {
		*p, err = parseSeconds(s)
		return err
	})
}

// maxSeconds bounds how long one may ask to measure.
const maxSeconds = 3600

func parseSeconds(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v <= maxSeconds) {
		return 0, fmt.Errorf("want a number of seconds, more than 0 and at most %d", maxSeconds)
	}
	return v, nil
}

// target declares the flag that names a target.
func (f *flagSet) target(p *string) {
	all := fusec.Targets()
	help := fmt.Sprintf("compile for the `TARGET` %s (default %s); cuda:1 is the second GPU", strings.Join(all, ", "), all[0])
	f.Func("target", help, func(s string) error {
		name, _, _ := strings.Cut(s, ":")
		if !slices.Contains(all, name) {
			return fmt.Errorf("want one of %s%s", strings.Join(all, ", "), suggest(s, all))
		}
		*p = s
		return nil
	})
}

// precision declares the flag that names a precision.
func (f *flagSet) precision(p *fusec.Precision) {
	f.Func("precision", "let contractions round to `NAME`: f32, tf32, bf16 or f16 (default f32)", func(s string) error {
		v, err := fusec.ParsePrecision(s)
		if err != nil {
			return errors.New("want f32, tf32, bf16 or f16")
		}
		*p = v
		return nil
	})
}

// names declares a flag that may be repeated and takes names separated by commas.
func (f *flagSet) names(p *[]string, name string, known func() []string, help string) {
	f.Func(name, help, func(s string) error {
		for _, n := range strings.Split(s, ",") {
			n = strings.TrimSpace(n)
			if list := known(); !slices.Contains(list, n) {
				return fmt.Errorf("want one of %s%s", strings.Join(list, ", "), suggest(n, list))
			}
			*p = append(*p, n)
		}
		return nil
	})
}

// choice declares a flag that is one of a few names.
func (f *flagSet) choice(p *string, name string, known []string, help string) {
	f.Func(name, help, func(s string) error {
		if !slices.Contains(known, s) {
			return fmt.Errorf("want one of %s%s", strings.Join(known, ", "), suggest(s, known))
		}
		*p = s
		return nil
	})
}

// describe lists the flags for the help.
func (f *flagSet) describe() string {
	type row struct{ flag, help string }
	var rows []row
	width := 0
	f.VisitAll(func(k *flag.Flag) {
		kind, help := flag.UnquoteUsage(k)
		r := row{dashed(k.Name), help}
		if b, ok := k.Value.(interface{ IsBoolFlag() bool }); !ok || !b.IsBoolFlag() {
			r.flag += " " + kind
		}
		width = max(width, utf8.RuneCountInString(r.flag))
		rows = append(rows, r)
	})
	var b strings.Builder
	for _, r := range rows {
		help := strings.ReplaceAll(r.help, "\n", "\n"+strings.Repeat(" ", width+4))
		fmt.Fprintf(&b, "  %-*s  %s\n", width, r.flag, help)
	}
	return b.String()
}
