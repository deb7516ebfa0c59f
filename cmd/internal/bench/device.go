package bench

import (
	"fmt"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/lowering"
)

// deviceReport is what fusec bench tells of a program on a GPU, beside the times of its launches. Times are in
// nanoseconds.
type deviceReport struct {
	Device     string    `json:"device"`
	Precision  string    `json:"precision"`
	Ceilings   ceilings  `json:"ceilings"`
	RunNS      int64     `json:"run_ns"`      // median by the host's clock, copies included
	DeviceNS   int64     `json:"device_ns"`   // by the device's clock, replayed with all values there
	LaunchesNS int64     `json:"launches_ns"` // sum of the launches' times, each started by itself between two events
	OverheadNS int64     `json:"overhead_ns"` // what of a run is neither that nor a copy
	CopyIn     transfer  `json:"copy_in"`
	CopyOut    transfer  `json:"copy_out"`
	UsedBytes  int64     `json:"used_bytes"`   // of the device's memory, by the program's own account
	TakenBytes int64     `json:"driver_bytes"` // by which what the driver has left fell: with code and rounding
	Pinned     int64     `json:"pinned_bytes"` // of the host's memory, for copies
	Kernels    []useLine `json:"kernels"`
}

// transfer is a copy between host and device in each run.
type transfer struct {
	Bytes    int64 `json:"bytes"`
	MedianNS int64 `json:"median_ns"`
}

// useLine is one kernel of a launch.
type useLine struct {
	Launch     int     `json:"launch"` // from 1
	Entry      string  `json:"entry"`
	Blocks     int     `json:"blocks"`
	Threads    int     `json:"threads"`
	Registers  int     `json:"registers"`
	LocalBytes int     `json:"local_bytes"`
	Shared     int     `json:"shared_bytes"`
	Resident   int     `json:"resident_blocks"`
	Occupancy  float64 `json:"occupancy"`
}

// useLineOf is the line of a kernel of launch n, from 0.
func useLineOf(n int, u lowering.KernelUse) useLine {
	return useLine{n + 1, u.Entry, u.Blocks, u.Threads, u.Registers, u.Spilled, u.Shared, u.Resident, u.Occupancy}
}

// deviceRuns is how many runs the device's own clock times.
const deviceRuns = 20

// describe measures what a program on a GPU does and takes; nil for programs on the CPU. Inputs have been set, and the
// launches profiled.
func (b *bencher) describe(p *fusec.Program, rep *benchReport, spans [][]lowering.Span) (*deviceReport, error) {
	i, err := p.Inspect()
	if i == nil || err != nil {
		return nil, err
	}
	times, err := p.Measure(deviceRuns)
	if err != nil {
		return nil, err
	}
	d := &deviceReport{Device: i.Device, Precision: b.compile.Precision.String(), RunNS: rep.Results[0].MedianNS,
		DeviceNS: medianTime(times).Nanoseconds(), UsedBytes: i.Used, TakenBytes: i.Taken, Pinned: i.Pinned}
	d.CopyIn = transfer{i.CopiesIn, medianSpan(spans, lowering.SpanCopyIn).Nanoseconds()}
	d.CopyOut = transfer{i.CopiesOut, medianSpan(spans, lowering.SpanCopyOut).Nanoseconds()}
	for _, l := range rep.Launches {
		d.LaunchesNS += l.MedianNS
	}
	d.OverheadNS = max(0, d.RunNS-d.DeviceNS-d.CopyIn.MedianNS-d.CopyOut.MedianNS)
	for n, list := range i.Kernels {
		for _, u := range list {
			d.Kernels = append(d.Kernels, useLineOf(n, u))
		}
	}
	d.Ceilings, err = b.ceilings(i.Device)
	return d, err
}

// medianTime is the median of durations.
func medianTime(times []time.Duration) time.Duration {
	x := make([]float64, len(times))
	for i, t := range times {
		x[i] = float64(t)
	}
	return time.Duration(Median(x))
}

// medianSpan is the median length of the spans of a kind.
func medianSpan(runs [][]lowering.Span, what lowering.SpanKind) time.Duration {
	var times []time.Duration
	for _, spans := range runs {
		for _, s := range spans {
			if s.What == what {
				times = append(times, s.Length)
			}
		}
	}
	if len(times) == 0 {
		return 0
	}
	return medianTime(times)
}

// share is the part that a launch reaches of the ceiling that is nearer: arithmetic in its precision, or memory.
func (d *deviceReport) share(l *lowering.Launch, r *launchReport) {
	gemm := d.Ceilings.GEMM[d.Precision]
	for _, v := range l.Args {
		if v.DType.Is16() {
			gemm = d.Ceilings.GEMM[graph.BF16.String()]
		}
	}
	if gemm > 0 {
		r.OfGEMM = r.GFLOPs / 1e3 / gemm
	}
	if d.Ceilings.Copy > 0 {
		r.OfCopy = r.GBs / d.Ceilings.Copy
	}
}

// text prints the report for people.
func (d *deviceReport) text() string {
	var b strings.Builder
	ns := func(n int64) string { return cli.HumanTime(time.Duration(n)) }
	fmt.Fprintf(&b, "%s, %s: %s\n", d.Device, d.Precision, d.Ceilings)
	copied := func(t transfer) string { return fmt.Sprintf("%s (%s)", ns(t.MedianNS), cli.HumanBytes(t.Bytes)) }
	fmt.Fprintf(&b, "a run takes %s by the host's clock: %s on the device, copies to it %s and back %s, the rest %s\n",
		ns(d.RunNS), ns(d.DeviceNS), copied(d.CopyIn), copied(d.CopyOut), ns(d.OverheadNS))
	fmt.Fprintf(&b, "its launches, each started by itself between two events, take %s\n", ns(d.LaunchesNS))
	fmt.Fprintf(&b, "memory on the device %s, by the driver's account %s with the code; pinned on the host %s\n\n",
		cli.HumanBytes(d.UsedBytes), cli.HumanBytes(d.TakenBytes), cli.HumanBytes(d.Pinned))
	t := cli.NewTable(">#", "entry", ">blocks", ">threads", ">registers", ">local bytes", ">shared memory", ">blocks at once",
		">occupancy")
	for _, k := range d.Kernels {
		t.Row(fmt.Sprint(k.Launch), k.Entry, fmt.Sprint(k.Blocks), fmt.Sprint(k.Threads), fmt.Sprint(k.Registers),
			fmt.Sprint(k.LocalBytes), cli.HumanBytes(int64(k.Shared)), fmt.Sprint(k.Resident), cli.Percent(k.Occupancy))
	}
	return b.String() + t.String()
}
