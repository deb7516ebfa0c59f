package training

import (
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"

	"fusec/cmd/internal/cli"
	"fusec/examples/train"
	"fusec/graph/report/live"
)

// serve serves the page of the run, its metrics and profiles of this process, if asked to, until stop is called.
func (t *trainer) serve(e *cli.Env, vm train.Machine) (stop func(), err error) {
	if t.listen == "" {
		return func() {}, nil
	}
	at, err := net.Listen("tcp", t.listen)
	if err != nil {
		return nil, fmt.Errorf("--listen %s: %w", t.listen, cli.Cause(err))
	}
	t.live = live.Handler(vm)
	mux := http.NewServeMux()
	mux.Handle("/debug/fusec", t.live)
	mux.Handle("/debug/fusec/", t.live)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	server := &http.Server{Handler: mux}
	go server.Serve(at) // until Close
	e.Note("the run is at http://%s/debug/fusec", at.Addr())
	return func() { server.Close() }, nil
}

// tell records a step for the page.
func (t *trainer) tell(x train.Record, vm train.Machine) {
	if t.live == nil {
		return
	}
	s := live.Step{Loss: x.Loss, Skipped: vm.StepStats().Skipped}
	for _, l := range x.Loads {
		if s.Experts == nil {
			s.Experts = map[string][]int{}
		}
		s.Experts[l.Name] = l.Tokens
	}
	t.live.Step(s)
}
