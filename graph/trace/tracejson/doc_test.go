package tracejson_test

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	. "fusec/graph/trace/tracejson"
)

// TestDocumented compares docs/trace-json.md, field by field, with the types.
func TestDocumented(t *testing.T) {
	src, err := os.ReadFile("../../../docs/trace-json.md")
	if err != nil {
		t.Fatal(err)
	}
	text := string(src)
	if !strings.Contains(text, "`"+Schema+"`") {
		t.Errorf("docs/trace-json.md does not name %s", Schema)
	}
	said := map[string]map[string]string{} // the type of each field of each type
	row := regexp.MustCompile("^\\| `(\\w+)` \\| ([^|]+) \\| .+ \\|$")
	section := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if name, ok := strings.CutPrefix(line, "## "); ok {
			section = name
			said[section] = map[string]string{}
		} else if m := row.FindStringSubmatch(line); m != nil {
			said[section][m[1]] = m[2]
		}
	}
	seen := map[reflect.Type]bool{}
	var walk func(s reflect.Type)
	fields := func(s reflect.Type) map[string]string {
		all := map[string]string{}
		for _, f := range reflect.VisibleFields(s) {
			if f.Anonymous {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			all[name] = jsonType(f.Type)
			of := f.Type
			for of.Kind() == reflect.Slice || of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			if of.Kind() == reflect.Struct {
				walk(of)
			}
		}
		return all
	}
	walk = func(s reflect.Type) {
		if seen[s] {
			return
		}
		seen[s] = true
		want, got := fields(s), said[s.Name()]
		for name, of := range want {
			if got[name] != of {
				t.Errorf("%s: field %s is a %s; docs/trace-json.md says %q", s.Name(), name, of, got[name])
			}
		}
		for name := range got {
			if want[name] == "" {
				t.Errorf("%s has no field %s, which docs/trace-json.md has", s.Name(), name)
			}
		}
		delete(said, s.Name())
	}
	walk(reflect.TypeFor[Trace]())
	for name := range said {
		t.Errorf("docs/trace-json.md has a type %s, which nothing is of", name)
	}
}

// jsonType is a type as the documentation names it.
func jsonType(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Pointer:
		return jsonType(t.Elem())
	case reflect.Slice:
		return "list of " + jsonType(t.Elem())
	case reflect.Map:
		return "map of " + jsonType(t.Elem())
	case reflect.Struct:
		return t.Name()
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64, reflect.Float64:
		return "number"
	}
	return fmt.Sprint("unknown ", t)
}
