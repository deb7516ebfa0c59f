// Package report writes the record of a compilation as one HTML page: the run launch by launch, layers and phases, what
// each pass changed, missed fusions, memory and code. The page holds all that it needs, opens from disk, and loads
// nothing.
package report

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"fusec/graph/atomicfile"
	"fusec/graph/dot"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

// The parts of the page.
var (
	//go:embed page/page.html
	pageHTML string
	//go:embed page/style.css
	styleCSS string
	//go:embed page/model.js
	modelJS string
	//go:embed page/views.js
	viewsJS string
	//go:embed page/main.js
	mainJS string
)

// Write writes the report of a compilation to a file. It shows times if the trace has any. The user's lines are shown
// beside the kernels if their Go files can be read.
func Write(path string, tr *trace.Trace) error { return WriteAbout(path, tr, tracejson.About{}) }

// WriteAbout is Write with the model's name, the machine, and more that the page shows in its head.
func WriteAbout(path string, tr *trace.Trace, about tracejson.About) error {
	measured := false
	if tr.Program != nil {
		for _, l := range tr.Program.Launches {
			measured = measured || l.Measured > 0
		}
	}
	t := tracejson.New(tr, tracejson.All(about, measured))
	t.Lines = Lines(t, func(file string) ([]byte, error) {
		if filepath.Ext(file) != ".go" {
			return nil, os.ErrNotExist
		}
		return os.ReadFile(file)
	})
	return atomicfile.Write(path, func(w io.Writer) error { return Page(w, t) })
}

// content is what the page unpacks.
type content struct {
	Live   bool               `json:"live,omitempty"` // the page asks its address for the state of the run
	Kinds  []dot.Kind         `json:"kinds"`
	Traces []*tracejson.Trace `json:"traces"`
}

// Page writes the report of a trace. A second one is compared with it.
func Page(w io.Writer, t *tracejson.Trace, other ...*tracejson.Trace) error {
	if len(other) > 1 {
		return fmt.Errorf("a report compares two traces, not %d", 1+len(other))
	}
	return write(w, content{Traces: append([]*tracejson.Trace{t}, other...)})
}

// LivePage writes the page that package live serves while a model trains.
func LivePage(w io.Writer, t *tracejson.Trace) error {
	return write(w, content{Live: true, Traces: []*tracejson.Trace{t}})
}

func write(w io.Writer, c content) error {
	c.Kinds = dot.Kinds()
	var data bytes.Buffer
	z, err := gzip.NewWriterLevel(&data, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := json.NewEncoder(z).Encode(c); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	script := modelJS + viewsJS + mainJS
	// The page allows this style and this script only, by their hashes.
	_, err = strings.NewReplacer(
		"SHA-STYLE", hash(styleCSS), "SHA-SCRIPT", hash(script), "TITLE", html.EscapeString(title(c.Traces[0])),
		"STYLE", styleCSS, "SCRIPT", script, "DATA", base64.StdEncoding.EncodeToString(data.Bytes()),
	).WriteString(w, pageHTML)
	return err
}

func title(t *tracejson.Trace) string {
	if t.Model == "" {
		return "fusec report"
	}
	return t.Model
}

// hash is a source in a content security policy.
func hash(s string) string {
	sum := sha256.Sum256([]byte(s))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// What Lines reads at most.
const (
	around    = 2       // lines before and after each position
	longest   = 300     // bytes of a line
	mostFiles = 256     // files
	mostBytes = 4 << 20 // of a file
)

// Lines reads the user's lines, and those around them, by position. A file that read does not give is left out.
func Lines(t *tracejson.Trace, read func(file string) ([]byte, error)) map[string]string {
	lines := map[string]string{}
	files := map[string][]string{}
	for _, o := range t.Origins {
		at := strings.LastIndexByte(o.Pos, ':')
		if at < 0 {
			continue
		}
		file := o.Pos[:at]
		n, err := strconv.Atoi(o.Pos[at+1:])
		if err != nil || n < 1 {
			continue
		}
		text, known := files[file]
		if !known && len(files) < mostFiles {
			if src, err := read(file); err == nil && len(src) <= mostBytes {
				text = strings.Split(strings.ToValidUTF8(string(src), "\uFFFD"), "\n")
			}
			files[file] = text
		}
		for k := max(n-around, 1); k <= min(n+around, len(text)); k++ {
			line := strings.TrimRight(text[k-1], "\r")
			lines[file+":"+strconv.Itoa(k)] = strings.ToValidUTF8(line[:min(longest, len(line))], "")
		}
	}
	return lines
}
