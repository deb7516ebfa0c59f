// Package estimate predicts how long a program takes, from the rates of a machine: a roofline for each launch (S. Williams, A.
// Waterman, D. Patterson, "Roofline: An Insightful Visual Performance Model", 2009), and for a collective operation its
// latency and the bytes that a participant sends.
package estimate

import (
	"fmt"
	"math"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
)

// Machine is the rates of one participant, in a second.
type Machine struct {
	FLOPS   float64       // floating-point operations
	Bytes   float64       // of memory traffic
	Link    float64       // bytes to other participants
	Launch  time.Duration // that each launch takes at least
	Latency time.Duration // of a message
}

// Check refuses rates that are not positive.
func (m Machine) Check() error {
	if !(m.FLOPS > 0 && m.Bytes > 0 && m.Link > 0) || m.Launch < 0 || m.Latency < 0 {
		return fmt.Errorf("a machine of %v FLOP/s, %v B/s of memory and %v B/s of links: want positive rates", m.FLOPS, m.Bytes, m.Link)
	}
	return nil
}

// Devices are machines by name. Rates of GPUs are those of large products in bf16 and of copies, and of NCCL's exchanges over
// NVLink without multicast, as measured (docs/cuda.md, docs/scale.md).
var Devices = map[string]Machine{
	"h100": {FLOPS: 600e12, Bytes: 2.8e12, Link: 280e9, Launch: 2 * time.Microsecond, Latency: 5 * time.Microsecond},
	"h200": {FLOPS: 600e12, Bytes: 4e12, Link: 280e9, Launch: 2 * time.Microsecond, Latency: 5 * time.Microsecond},
}

// Fitted is a machine with the rates of m, all changed alike, on which the launches of a program take as long as they were
// measured to in all. Links stay as they are.
func (m Machine) Fitted(p *lowering.Program, took time.Duration) Machine {
	f := float64(took) / float64(max(Of(p, m).Compute, 1))
	m.FLOPS, m.Bytes, m.Launch = m.FLOPS/f, m.Bytes/f, time.Duration(float64(m.Launch)*f)
	return m
}

// Step is what a run is predicted to take on each participant.
type Step struct {
	Compute, Exchange time.Duration // of all launches that compute, and of all collective operations
	// Exposed is the part of Exchange that no launch hides which does not depend on it: with Compute it is the time of a run
	// that makes collective operations beside other launches, as target cpu does.
	Exposed time.Duration
	Sent    int64 // bytes to other participants
	Memory  int64 // bytes of parameters, state, values of the run, and what its kernels use besides
}

// Ordered is the time of a run whose launches follow one another; Overlapped that of one that hides what it can.
func (s Step) Ordered() time.Duration    { return s.Compute + s.Exchange }
func (s Step) Overlapped() time.Duration { return s.Compute + s.Exposed }

// Of predicts a run of a program, without its prepared part. Collective operations are made one after another, beside the
// launches that compute, each as soon as what it reads is there.
//
// Of a pipeline, Compute is what its slowest stage computes, and Exposed the rest of the step, in which that one waits: for the
// first microbatch to come, for the last one to come back, and for what is sent.
func Of(p *lowering.Program, m Machine) (s Step) {
	if len(p.Stages) > 0 {
		return pipeline(p, m)
	}
	ready := make([]time.Duration, len(p.Buffers)) // when a buffer has its value
	var compute, link time.Duration                // when each is free
	for i := range p.Launches {
		if i < p.Prepared {
			continue
		}
		l := &p.Launches[i]
		start := time.Duration(0)
		for _, v := range l.Args {
			start = max(start, ready[v.Buffer])
		}
		took, exchange := Launch(p, l, m)
		var end time.Duration
		if exchange {
			s.Exchange += took
			s.Sent += Sent(p, l)
			end = max(start, link) + took
			link = end
		} else {
			s.Compute += took
			end = max(start, compute) + took
			compute = end
		}
		for _, v := range l.Results {
			ready[v.Buffer] = end
		}
	}
	s.Exposed = max(compute, link) - s.Compute
	s.Memory = p.ArenaBytes + p.PreparedBytes + p.ScratchBytes
	for _, b := range p.Buffers {
		if b.Role != lowering.Temp && b.Role != lowering.Prepared {
			s.Memory += b.Type.Bytes()
		}
	}
	return s
}

// The estimates of exchanges.
const (
	SentBytes    = "sent"
	ExchangeTime = "exchange"
)

// Links is how fast values go between participants.
type Links struct {
	Rate    float64       // bytes a second that a participant sends
	Latency time.Duration // of a message
}

// Exchanges adds to the estimates of each launch that waits for other participants what it sends and how long it takes, if
// nothing else uses the links.
func Exchanges(p *lowering.Program, l Links) {
	for i := range p.Launches {
		took, exchange := Launch(p, &p.Launches[i], Machine{Link: l.Rate, Latency: l.Latency})
		if !exchange || p.Launches[i].Estimates.Get(SentBytes) > 0 {
			continue
		}
		p.Launches[i].Estimates = append(p.Launches[i].Estimates,
			trace.Measure{Name: SentBytes, Unit: "bytes", Value: float64(Sent(p, &p.Launches[i]))},
			trace.Measure{Name: ExchangeTime, Unit: "µs", Value: math.Round(took.Seconds()*1e7) / 10})
	}
}

// Launch predicts a launch, and reports whether it waits for other participants.
func Launch(p *lowering.Program, l *lowering.Launch, m Machine) (took time.Duration, exchange bool) {
	seconds := func(x, rate float64) time.Duration { return time.Duration(x / rate * float64(time.Second)) }
	if parts := group(p, l); parts > 1 {
		return time.Duration(rounds(l.Op))*m.Latency + seconds(float64(Sent(p, l)), m.Link), true
	}
	flops := float64(l.FLOPs) / float64(experts(p, l))
	return m.Launch + max(seconds(flops, m.FLOPS), seconds(float64(l.Bytes), m.Bytes)), false
}

// experts is over how many participants the experts of a mixture are split. One has as few of the tokens' choices, if all are
// chosen as often.
func experts(p *lowering.Program, l *lowering.Launch) int {
	anchor, _ := graph.AnchorOf(l.Op)
	if f, ok := l.Op.(graph.Fusion); ok {
		anchor = f.Anchor
	}
	if anchor != graph.AnchorMoE {
		return 1
	}
	parts := 1
	for _, v := range l.Args {
		if s := p.Buffers[v.Buffer].Sharding; v.Layout.Shape.Rank() == 3 && p.Buffers[v.Buffer].Role == lowering.Param {
			parts = max(parts, p.Mesh.Parts(s.Split[0]))
		}
	}
	return parts
}

// group is the number of participants that a launch joins.
func group(p *lowering.Program, l *lowering.Launch) int {
	op, ok := l.Op.(graph.Collective)
	if _, local := l.Op.(graph.Part); !ok || local {
		return 1
	}
	axes, err := op.Of().Axes(p.Mesh)
	if err != nil {
		return 1
	}
	return p.Mesh.Parts(axes)
}

// Sent is how many bytes a launch sends to other participants.
func Sent(p *lowering.Program, l *lowering.Launch) int64 { return graph.LinkBytes(l.Node, group(p, l)) }

// rounds is how often participants wait for one another.
func rounds(op graph.Op) int {
	if _, ok := op.(graph.AllReduce); ok {
		return 2
	}
	return 1
}

// pipeline predicts a step of a pipeline, as long as its slowest stage takes for each microbatch, and for as many more as there are
// other stages.
func pipeline(p *lowering.Program, m Machine) (s Step) {
	micro := time.Duration(p.Microbatches)
	var slowest, last, send time.Duration
	launches := p.Launches
	for _, stage := range p.Stages {
		var each, once time.Duration
		for i := range stage.Launches {
			took, _ := Launch(p, &launches[i], m)
			if i < stage.Each {
				each += took
			} else {
				once += took
			}
		}
		launches = launches[stage.Launches:]
		if stage.Sent > 0 {
			send = max(send, 2*m.Latency+time.Duration(float64(stage.Sent)/m.Link*1e9))
		}
		slowest, last = max(slowest, each), max(last, once)
		s.Sent, s.Memory = max(s.Sent, stage.Sent*int64(p.Microbatches)), max(s.Memory, stage.Memory)
	}
	s.Compute = micro*slowest + last
	s.Exposed = time.Duration(len(p.Stages)-1)*(slowest+send) + micro*send
	s.Exchange = s.Exposed
	return s
}
