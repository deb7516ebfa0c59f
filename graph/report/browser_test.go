package report_test

import (
	"context"
	"flag"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/optim"
	"fusec/graph/report/live"
	"fusec/graph/trace"
	"fusec/graph/trace/tracejson"
)

var screenshots = flag.String("screenshots", "", "write a picture of every tab of every page into this `folder`")

// browser starts a headless Chromium, with a function that gives what went wrong in its pages so far: errors and
// warnings on the console, and requests for anything but addresses that begin so.
func browser(t *testing.T, begin string) (context.Context, func() []string) {
	path := ""
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if p, err := exec.LookPath(name); err == nil && path == "" {
			path = p
		}
	}
	switch {
	case path == "" && os.Getenv("FUSEC_REQUIRE") != "":
		t.Fatal("no Chromium: install Debian's chromium")
	case path == "":
		t.Skip("no Chromium; the test opens the page in it")
	}
	opts := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(1500, 1000), chromedp.WSURLReadTimeout(time.Minute))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), opts...)
	t.Cleanup(stop)
	ctx, stop := chromedp.NewContext(alloc)
	t.Cleanup(stop)
	ctx, stop = context.WithTimeout(ctx, time.Minute)
	t.Cleanup(stop)
	var lock sync.Mutex
	var wrong []string
	add := func(format string, args ...any) {
		lock.Lock()
		defer lock.Unlock()
		wrong = append(wrong, fmt.Sprintf(format, args...))
	}
	_, err := chromedp.Call(ctx, network.Enable, network.EnableParams{})
	if err == nil {
		_, err = chromedp.Call(ctx, log.Enable, cdp.Empty{})
	}
	if err == nil {
		err = chromedp.Listen(ctx, func(event any) {
			switch e := event.(type) {
			case *runtime.EventConsoleAPICalled:
				if e.Type == runtime.ConsoleAPICalledTypeError || e.Type == runtime.ConsoleAPICalledTypeWarning {
					add("console: %s", e.Args[0].Value)
				}
			case *runtime.EventExceptionThrown:
				add("exception: %v", e.ExceptionDetails)
			case *log.EventEntryAdded:
				if e.Entry.Level == log.EntryLevelError {
					add("log: %s", e.Entry.Text)
				}
			case *network.EventRequestWillBeSent:
				if u := e.Request.URL; !strings.HasPrefix(u, begin) && u != "about:blank" {
					add("it loads %s", u)
				}
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return ctx, func() []string {
		lock.Lock()
		defer lock.Unlock()
		return wrong
	}
}

// pages are files of pages to be opened, by name, with a name to search for.
func pages(t *testing.T) map[string][2]string {
	dir := t.TempDir()
	all := map[string][2]string{}
	save := func(name, search string, about tracejson.About, list ...*trace.Trace) {
		var js []*tracejson.Trace
		for _, tr := range list {
			js = append(js, tracejson.New(tr, tracejson.All(about, true)))
		}
		path := filepath.Join(dir, name+".html")
		if err := os.WriteFile(path, []byte(page(t, js[0], js[1:]...)), 0o666); err != nil {
			t.Fatal(err)
		}
		all[name] = [2]string{path, search}
	}
	machine := &tracejson.Machine{CPU: "a processor", Cores: 2, FLOPRate: 50e9, ByteRate: 10e9}
	save("step", "block2/attn/probs", tracejson.About{Model: "transformer, 12 layers", Machine: machine}, step(t, 12, 5))
	save("compare", "block1", tracejson.About{Machine: machine}, step(t, 3, 1), step(t, 3, -1, fusec.WithoutPass("fuse-attention")))
	save("hostile", "b onload", tracejson.About{Model: "<img src=x onerror=alert(1)>"}, timed(t, hostile(t)))
	save("pipeline", "block1", tracejson.About{Machine: machine}, staged(t))
	return all
}

// staged is a training step in two stages, as if it had been measured.
func staged(t *testing.T) *trace.Trace {
	g := graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("x", graph.TypeOf(graph.F32, 8, 16))
		for i := range 2 {
			w := b.Param(fmt.Sprintf("block%d/weight", i), graph.TypeOf(graph.F32, 16, 16))
			x = b.Named(b.Unary(graph.Tanh, b.MatMul(x, w, false, false)), fmt.Sprintf("block%d/out", i))
		}
		b.Output("cost", b.Reduce(graph.Mean, b.Unary(graph.Square, x), false, 0, 1))
	})
	o := &optim.Optimizer{Rule: optim.Adam{}, Rate: optim.Constant(0.1)}
	tr := timed(t, g, fusec.WithOptimizer(o), fusec.WithDevices("cpu", "cpu"), fusec.WithPipeline(4))
	run := &trace.PipelineRun{Steps: 9, Waited: 0.25}
	for s := range 2 {
		stage := trace.StageRun{Step: 100 * time.Millisecond}
		for i, what := range []trace.PipelineWork{trace.WaitPrevious, trace.StageForward, trace.WaitNext, trace.StageBackward,
			trace.WaitAll, trace.StageUpdate, trace.StageSums} {
			x := trace.PipelineSpan{What: what, Microbatch: i % 4,
				Start: time.Duration(10*i+s) * time.Millisecond, Length: 9 * time.Millisecond}
			stage.Add(x)
			stage.Spans = append(stage.Spans, x)
		}
		run.Stages = append(run.Stages, stage)
	}
	tr.Stages[len(tr.Stages)-1].Pipeline.Measured = run
	return tr
}

// hostile is a graph whose names are HTML.
func hostile(t *testing.T) *graph.Graph {
	return graphtest.Built(t, func(b *graph.Builder) {
		x := b.Input("<b onload=alert(1)>", graph.TypeOf(graph.F32, 8, 8))
		w := b.Param(`</script><script>alert("w")</script>`, graph.TypeOf(graph.F32, 8, 8))
		b.Output("'\"><img src=x onerror=alert(2)>", b.Named(b.MatMul(b.Unary(graph.Tanh, b.MatMul(x, w, false, false)), w, false, false),
			"<b onload=alert(3)>/y"))
	})
}

// TestBrowser opens pages from disk, in dark and in light, clicks through their tabs, searches, and follows a link.
func TestBrowser(t *testing.T) {
	ctx, wrong := browser(t, "file:")
	run := func(actions ...chromedp.Action[chromedp.Void]) {
		t.Helper()
		if err := chromedp.Do(ctx, actions...); err != nil {
			t.Fatal(err)
		}
	}
	text := func(sel chromedp.CSS) string {
		t.Helper()
		s, err := chromedp.Run(ctx, chromedp.Text(sel))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	open := func(url string) {
		t.Helper()
		run(chromedp.Navigate("about:blank"), chromedp.Navigate(url), chromedp.WaitReady(chromedp.CSS("html[data-ready]")))
	}
	for name, p := range pages(t) {
		for _, scheme := range map[string][]string{"step": {"light", "dark"}, "compare": {"dark"}, "hostile": {"light"},
			"pipeline": {"light", "dark"}}[name] {
			t.Run(name+"/"+scheme, func(t *testing.T) {
				before := len(wrong())
				url := "file://" + p[0]
				if _, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
					Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}); err != nil {
					t.Fatal(err)
				}
				open(url)
				tabs := []string{"layers", "launches", "stages", "missed", "memory", "code", "compare"}
				if name == "pipeline" {
					tabs = append(tabs, name)
				}
				for _, tab := range tabs {
					run(chromedp.Click(chromedp.CSS("#tab-" + tab)))
					selected, err := chromedp.Run(ctx, chromedp.AttributeValue(chromedp.CSS("#tab-"+tab), "aria-selected"))
					if err != nil {
						t.Fatal(err)
					}
					if selected.Value != "true" || len(text("#main")) < 20 {
						t.Errorf("tab %s: selected %q, its text %q", tab, selected.Value, text("#main"))
					}
					shoot(t, ctx, name+"-"+scheme+"-"+tab)
				}
				if name == "pipeline" {
					got := text("#main")
					for _, want := range []string{"wait for 25.0 % of a step", "20.0 % if stages took equally long",
						"4 microbatches", "for previous"} {
						if !strings.Contains(got, want) {
							t.Errorf("no %q in %q", want, got)
						}
					}
				}
				// A launch has a link, which can be opened.
				open(url + "#launch-2")
				if got := text("#side h2"); !strings.HasPrefix(got, "#2 ") {
					t.Errorf("the link to launch 2 shows %q", got)
				}
				shoot(t, ctx, name+"-"+scheme+"-launch")
				// A launch's code and stages.
				run(chromedp.KeyEvent("6"))
				if got := text("#main"); !strings.Contains(got, "#2,") {
					t.Errorf("the code of launch 2 is %q", got)
				}
				shoot(t, ctx, name+"-"+scheme+"-launch-code")
				run(chromedp.KeyEvent("3"))
				if got := text("#main"); !strings.Contains(got, "From stage to stage") {
					t.Errorf("the stages of launch 2 are %q", got)
				}
				shoot(t, ctx, name+"-"+scheme+"-launch-stages")
				// Search by the keyboard.
				run(chromedp.KeyEvent("/"), chromedp.SendKeys(chromedp.CSS("#find"), p[1]), chromedp.WaitVisible(chromedp.CSS("#found li")))
				if got := text("#found li"); !strings.Contains(got, strings.Split(p[1], "/")[0]) {
					t.Errorf("the search finds %q first", got)
				}
				shoot(t, ctx, name+"-"+scheme+"-search")
				run(chromedp.SendKeys(chromedp.CSS("#find"), kb.Enter))
				hash, err := chromedp.Run(ctx, chromedp.Evaluate[string]("location.hash"))
				if err != nil {
					t.Fatal(err)
				}
				if !strings.HasPrefix(hash, "#launch-") || !strings.HasPrefix(text("#side h2"), "#"+hash[len("#launch-"):]+" ") {
					t.Errorf("the search leads to %q", hash)
				}
				// Sorting, and the next launch.
				run(chromedp.KeyEvent("2"), chromedp.Click(chromedp.CSS("th:nth-child(1) button")), chromedp.KeyEvent(kb.Escape),
					chromedp.KeyEvent("j"))
				if got := text("#side h2"); !strings.HasPrefix(got, "#1 ") {
					t.Errorf("the first launch is shown as %q", got)
				}
				if list := wrong()[before:]; len(list) > 0 {
					t.Errorf("in the browser: %q", list)
				}
			})
		}
	}
}

// TestBrowserLive opens the page of a run that goes on.
func TestBrowserLive(t *testing.T) {
	tr := step(t, 2, -1)
	run := live.Handler(planned{tr})
	for i := range 40 {
		run.Step(live.Step{Loss: 3 / float64(i+1), Took: time.Duration(1+i%3) * time.Millisecond, Skipped: 1,
			Experts: map[string][]int{"mixture": {5, 0, 11}}})
	}
	server := httptest.NewServer(run)
	defer server.Close()
	ctx, wrong := browser(t, server.URL)
	if err := chromedp.Do(ctx, chromedp.Navigate(server.URL+"/debug/fusec"),
		chromedp.WaitVisible(chromedp.CSS("#main path"))); err != nil {
		t.Fatal(err)
	}
	text, err := chromedp.Run(ctx, chromedp.Text(chromedp.CSS("#main")))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"40 steps", "1 step skipped", "mixture", "expert 2"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in %q", want, text)
		}
	}
	shoot(t, ctx, "live")
	if list := wrong(); len(list) > 0 {
		t.Errorf("in the browser: %q", list)
	}
}

// planned is a machine that has a trace.
type planned struct{ tr *trace.Trace }

func (p planned) Trace() *trace.Trace { return p.tr }

// shoot writes a picture of the page.
func shoot(t *testing.T, ctx context.Context, name string) {
	t.Helper()
	if *screenshots == "" {
		return
	}
	png, err := chromedp.Run(ctx, chromedp.CaptureScreenshot())
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(*screenshots, name+".png"), png, 0o666); err != nil {
		t.Fatal(err)
	}
}
