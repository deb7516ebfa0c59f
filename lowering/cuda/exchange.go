package cuda

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/estimate"
)

// Collective operations have a stream of their own, on which they run beside the launches that follow, up to the first one that
// has to wait: because it reads the result, or because it writes where the operation reads or writes. Small ones are put
// together to a bucket, which is one exchange. A bucket ends when it has enough bytes, when a launch waits for it, or when an
// operation comes that needs its parts brought into order.
//
// The blocks of a product divide its tiles among the multiprocessors beforehand. A few of these that an exchange takes make it
// last up to twice as long. So a bucket ends before other launches, such as an attention, that are long enough to hide much of
// it: their many blocks go where there is room. Where no such launches come, buckets before a launch that waits are smaller and
// smaller: one ends when it has as many bytes as are still to come. Where copy engines make exchanges, launches need not leave
// room: buckets are small, and begin at once.

const (
	// DefaultBucket is the number of bytes at which a bucket ends.
	DefaultBucket = 64 << 20
	// leastBucket is how many bytes a bucket has at least that ends earlier although more are to come. Of what NCCL takes for so
	// many, half is latency (docs/scale.md).
	leastBucket = 4 << 20
	// copiedBucket is the number of bytes at which a bucket ends that copy engines send.
	copiedBucket = 16 << 20
	// An exchange begins if launches other than products hide at least its time divided by roomShare.
	roomShare = 2
)

// exchanges is the collective operations of an executable.
type exchanges struct {
	group  *group.Group
	run    int64 // the group's number of the run
	most   int   // blocks of threads that an exchange takes; see [driver.GPU.Join]
	bucket int64 // bytes at which a bucket ends
	stream driver.Stream
	comms  map[string]driver.Comm // by their ranks
	of     []driver.Comm          // by launch
	joins  []int                  // by launch: the launch that waits for it; 0 for launches that exchange nothing
	ahead  []int                  // by launch: that of which steps run before it waits, counted from 1; 0 if there is none
	later  []int64                // by launch: the bytes that are sent after it and before the launch that waits for it
	room   []time.Duration        // by launch: how long it and those after it should take, up to the next product
	roomy  []time.Duration        // by launch: an exchange of so long finds room before a launch waits for this one
	begun  driver.Event
	ended  []driver.Event // of the buckets since the stream was last waited for at the end of a part

	timing bool  // buckets are measured
	open   []int // launches of the open bucket
	bytes  int64 // that they send
	marks  int   // events of ended that are in use
	flying []flight
}

// A flight is a bucket under way, and the first launch that waits for it.
type flight struct {
	until int
	ended driver.Event
}

// DefaultExchangeBlocks has NCCL choose how many blocks of threads an exchange takes: fewer, with multiprocessors left to them, are
// slower (docs/scale.md).
const DefaultExchangeBlocks = 0

// alone refuses the exchanges of a program that has no group.
func alone(p *lowering.Program) error {
	for i := range p.Launches {
		l := &p.Launches[i]
		if exchanges, _ := exchanged(p, l); exchanges {
			return fmt.Errorf("launch %d, %s: %s of several participants, and the program runs alone: run it in a group", i+1,
				l.Node.Where(), l.Op.OpName())
		}
	}
	return nil
}

// joins finds for each launch that exchanges something the launch that waits for it; 0 for all others. The number of launches is
// that of the end.
func joins(p *lowering.Program) []int {
	list := make([]int, len(p.Launches))
	for i := range p.Launches {
		if exchanges, _ := exchanged(p, &p.Launches[i]); exchanges {
			list[i] = join(p, i)
		}
	}
	return list
}

// exchanged reports whether a launch exchanges something.
func exchanged(p *lowering.Program, l *lowering.Launch) (bool, error) {
	op, ok := l.Op.(graph.Collective)
	if _, local := l.Op.(graph.Part); !ok || local || op.Of().Parts == 1 {
		return false, nil
	}
	if len(p.Mesh) == 0 {
		return op.Of().Parts > 1, nil
	}
	axes, err := op.Of().Axes(p.Mesh)
	return p.Mesh.Parts(axes) > 1, err
}

func join(p *lowering.Program, i int) int {
	for j := i + 1; j < len(p.Launches); j++ {
		if !independent(p, i, j) {
			return j
		}
	}
	return len(p.Launches)
}

// independent reports whether launch j uses nothing that an earlier launch i writes, and writes nothing that it uses.
func independent(p *lowering.Program, i, j int) bool {
	l, m := &p.Launches[i], &p.Launches[j]
	return !depends(p, &task{reads: m.Args, writes: m.Results}, &task{reads: l.Args, writes: l.Results})
}

// overlap reports whether the buffers of some views have memory in common.
func overlap(p *lowering.Program, a, b []lowering.View) bool {
	for _, v := range a {
		for _, w := range b {
			if v.Buffer == w.Buffer {
				return true
			}
			x, y := &p.Buffers[v.Buffer], &p.Buffers[w.Buffer]
			if x.Role == lowering.Temp && y.Role == lowering.Temp && x.Offset < y.Offset+y.Type.Bytes() &&
				y.Offset < x.Offset+x.Type.Bytes() {
				return true
			}
		}
	}
	return false
}

// beside finds the launches that run while others exchange something.
func beside(p *lowering.Program) []bool {
	list := make([]bool, len(p.Launches))
	until := 0
	for i, at := range joins(p) {
		list[i] = i < until
		until = max(until, at)
	}
	return list
}

// stepsAhead finds the launches whose first steps run before an earlier launch that waits for an exchange: the first one after all
// that makes their arguments.
func (e *executable) stepsAhead(list []*kernels.Kernel) []int {
	ahead := make([]int, len(list))
	waits := make([]bool, len(list)+1)
	for _, at := range e.exchanges.joins {
		waits[at] = at > 0
	}
	for _, part := range e.parts {
		for i := part.from; i < part.to; i++ {
			if list[i] == nil || list[i].Ahead == 0 {
				continue
			}
			from := part.from
			for j := part.from; j < i; j++ {
				if overlap(e.p, e.p.Launches[i].Args, e.p.Launches[j].Results) {
					from = max(from, j+1, e.exchanges.joins[j])
				}
			}
			for j := from; j < i; j++ {
				if waits[j] && ahead[j] == 0 {
					ahead[j] = i + 1
					break
				}
			}
		}
	}
	return ahead
}

// startAhead queues the steps that run before launch i waits, beside what it waits for.
func (e *executable) startAhead(i int) error {
	k := e.exchanges.ahead[i] - 1
	if k < 0 {
		return nil
	}
	if err := e.sendBucket(); err != nil {
		return err
	}
	l := &e.launches[k]
	l.begun, l.timed = l.kernel.Ahead, e.profile
	err := e.marked(e.events[l.marks], e.events[l.marks+1], func() error { return queue(e.stream, l.steps[:l.begun], nil) })
	if err != nil {
		return e.inLaunch(k, err)
	}
	return nil
}

// startExchanging joins the communicators of all launches that exchange something, before the first run.
func (e *executable) startExchanging() (err error) {
	x := e.exchanges
	if x == nil || x.of != nil {
		return nil
	}
	if x.stream == nil {
		if x.stream, err = e.gpu.NewUrgentStream(); err != nil {
			return err
		}
		if x.begun, err = e.gpu.NewEvent(); err != nil {
			return err
		}
	}
	of := make([]driver.Comm, len(e.launches))
	for i := range e.launches {
		for _, s := range e.launches[i].steps {
			if s.Exchange == nil {
				continue
			}
			if of[i], err = e.comm(s, x.joins[i] > i+1); err != nil {
				return e.inLaunch(i, err)
			}
		}
	}
	x.of = of
	return nil
}

// comm is the communicator of a step's group. One whose exchanges run beside launches leaves most of the GPU to them.
func (e *executable) comm(s step, beside bool) (driver.Comm, error) {
	x, most := e.exchanges, 0
	if beside {
		most = x.most
	}
	axes, err := s.Exchange.Op.Of().Axes(e.p.Mesh)
	if err != nil {
		return nil, err
	}
	ranks, _ := e.p.Mesh.Ranks(axes, x.group.Rank())
	key := fmt.Sprint(ranks, most)
	if c := x.comms[key]; c != nil {
		return c, nil
	}
	team, err := x.group.Team(ranks)
	if err != nil {
		return nil, err
	}
	c, err := e.gpu.Join(team, most)
	if err != nil {
		return nil, fmt.Errorf("joining the participants %v: %w", ranks, err)
	}
	x.comms[key] = c
	return c, nil
}

// beside queues launch i with what has to happen between the two streams. A launch that exchanges something goes to the stream of
// exchanges.
func (e *executable) beside(i int) error {
	x := e.exchanges
	if x == nil {
		return e.launch(i)
	}
	if err := e.startAhead(i); err != nil {
		return err
	}
	if err := e.waitExchanges(i); err != nil {
		return err
	}
	if x.joins[i] == 0 {
		if err := e.sendIfRoom(i); err != nil {
			return err
		}
		return e.launch(i)
	}
	steps := e.launches[i].steps
	if len(steps) > 1 {
		if err := e.sendBucket(); err != nil {
			return err
		}
	}
	x.open = append(x.open, i)
	x.bytes += steps[0].sends()
	enough := x.bucket
	if x.of[i].Copies() {
		enough = min(enough, copiedBucket)
	}
	if len(steps) > 1 || x.joins[i] == i+1 || x.bytes >= enough || e.lastAhead(i) ||
		x.time() > x.roomy[i] && (x.later[i] == 0 || x.bytes >= max(x.later[i], leastBucket)) {
		return e.sendBucket()
	}
	return nil
}

// lastAhead reports whether launch i is the last one of a bucket that begins before it is needed.
func (e *executable) lastAhead(i int) bool {
	number := e.p.Launches[i].Ahead
	return number > 0 && (i+1 == len(e.launches) || e.p.Launches[i+1].Ahead != number)
}

// time is how long the open bucket should take.
func (x *exchanges) time() time.Duration { return time.Duration(float64(x.bytes) / links.Rate * 1e9) }

// findRoom finds how long launches that are not products should take, one after another, and of these, which exchanges find room
// among them.
func (e *executable) findRoom() {
	x, n := e.exchanges, len(e.p.Launches)
	x.room, x.roomy = make([]time.Duration, n+1), make([]time.Duration, n)
	for i := n - 1; i >= 0; i-- {
		l := &e.p.Launches[i]
		switch f, fused := l.Op.(graph.Fusion); {
		case x.joins[i] > 0:
			x.room[i] = x.room[i+1]
		case l.Device != "" || fused && f.Anchor != graph.AnchorNone && f.Anchor != graph.AnchorRow && f.Anchor != graph.AnchorAttention,
			!fused && graph.Contracts(l.Op, 0):
		default:
			took, _ := estimate.Launch(e.p, l, estimate.Devices["h200"])
			x.room[i] = x.room[i+1] + took
		}
	}
	for i, until := range x.joins {
		for j := i + 1; j < until; j++ {
			room := x.room[j] * roomShare
			if e.p.Launches[j].Node.Phase == graph.Optimiser { // the last launches, which hide a whole exchange or none
				room = x.room[j]
			}
			x.roomy[i] = max(x.roomy[i], room)
		}
	}
}

// countLater finds how many bytes are sent after each exchange and before the launch that waits for it.
func (e *executable) countLater() {
	x := e.exchanges
	before := make([]int64, len(e.launches)+1) // the bytes that are sent before each launch
	for i := range e.launches {
		before[i+1] = before[i]
		if steps := e.launches[i].steps; x.joins[i] > 0 && len(steps) == 1 {
			before[i+1] += steps[0].sends()
		}
	}
	x.later = make([]int64, len(e.launches))
	for i, until := range x.joins {
		if until > 0 {
			x.later[i] = before[until] - before[i+1]
		}
	}
}

// measureBeside is beside for a run that is measured: of each bucket, too, where it begins and ends.
func (e *executable) measureBeside(i int) error {
	if e.p.Launches[i].Device != "" { // it needs all that is before it
		if err := e.endExchanges(); err != nil {
			return err
		}
		return e.runOne(i)
	}
	if e.exchanges.joins[i] > 0 {
		return e.beside(i)
	}
	if err := e.startAhead(i); err != nil {
		return err
	}
	if err := e.waitExchanges(i); err != nil {
		return err
	}
	if err := e.sendIfRoom(i); err != nil {
		return err
	}
	return e.runOne(i)
}

// sendIfRoom sends the open bucket if launch i, which exchanges nothing, and those after it leave room for it.
func (e *executable) sendIfRoom(i int) error {
	if x := e.exchanges; x.bytes >= leastBucket && x.room[i]*roomShare >= x.time() {
		return e.sendBucket()
	}
	return nil
}

// sends is how many bytes a step hands over.
func (s *step) sends() int64 {
	if s.Exchange == nil {
		return 0
	}
	return int64(s.Exchange.Elems) * int64(s.Exchange.DType.Size())
}

// waitExchanges makes the launches from i on wait for the exchanges that launch i needs done, and all before them.
func (e *executable) waitExchanges(i int) error {
	x := e.exchanges
	if slices.ContainsFunc(x.open, func(k int) bool { return x.joins[k] <= i }) {
		if err := e.sendBucket(); err != nil {
			return err
		}
	}
	last := -1
	for k, f := range x.flying {
		if f.until <= i {
			last = k
		}
	}
	if last < 0 {
		return nil
	}
	err := e.stream.Wait(x.flying[last].ended)
	x.flying = x.flying[last+1:]
	return err
}

// sendBucket queues the open bucket.
func (e *executable) sendBucket() error {
	x := e.exchanges
	if len(x.open) == 0 {
		return nil
	}
	open := x.open
	x.open, x.bytes = x.open[:0:0], 0
	if err := e.stream.Record(x.begun); err != nil {
		return err
	}
	if err := x.stream.Wait(x.begun); err != nil {
		return err
	}
	if err := e.mark(open, 0); err != nil {
		return err
	}
	until := len(e.launches)
	for first := 0; first < len(open); {
		end := first + 1
		for end < len(open) && x.of[open[end]] == x.of[open[first]] {
			end++
		}
		if err := e.send(open[first:end]); err != nil {
			return err
		}
		first = end
	}
	for _, i := range open {
		until = min(until, x.joins[i])
	}
	if err := e.mark(open, 1); err != nil {
		return err
	}
	if x.marks == len(x.ended) {
		v, err := e.gpu.NewEvent()
		if err != nil {
			return err
		}
		x.ended = append(x.ended, v)
	}
	ended := x.ended[x.marks]
	x.marks++
	x.flying = append(x.flying, flight{until, ended})
	return x.stream.Record(ended)
}

// mark records where the launches of a bucket begin, or end, in a run that is measured.
func (e *executable) mark(list []int, end int) error {
	if !e.exchanges.timing {
		return nil
	}
	for _, i := range list {
		if err := e.exchanges.stream.Record(e.events[2*i+end]); err != nil {
			return err
		}
	}
	return nil
}

// send queues launches of one communicator: one launch with all its steps, or several of one exchange each.
func (e *executable) send(list []int) error {
	x := e.exchanges
	if len(list) == 1 {
		if err := e.queueOn(x.stream, list[0]); err != nil {
			return e.inLaunch(list[0], err)
		}
		return nil
	}
	together := make([]driver.Exchange, len(list))
	for k, i := range list {
		together[k] = e.launches[i].steps[0].send
	}
	if err := x.of[list[0]].Queue(x.stream, together); err != nil {
		return e.inLaunch(list[0], err)
	}
	return nil
}

// endExchanges makes the stream wait for all exchanges.
func (e *executable) endExchanges() error {
	x := e.exchanges
	if x == nil {
		return nil
	}
	err := e.waitExchanges(len(e.launches))
	x.marks = 0
	return err
}

// forgetExchanges drops what a failed run has left open.
func (e *executable) forgetExchanges() {
	if x := e.exchanges; x != nil {
		x.open, x.bytes, x.flying, x.marks = nil, 0, nil, 0
		for i := range e.launches {
			e.launches[i].begun, e.launches[i].timed = 0, false
		}
	}
}

// How often a run's end is asked for, at first and later.
const (
	asked       = 20 * time.Microsecond
	askedSeldom = time.Millisecond
	askedLate   = 5 * time.Second // whether a participant is late
)

// sync waits for all work. With exchanges, it also watches the other participants: if one fails, the GPU would wait for ever.
func (e *executable) sync() error {
	x := e.exchanges
	if x == nil || len(x.comms) == 0 {
		return e.stream.Sync()
	}
	start, pause, seen := time.Now(), asked, time.Now()
	for {
		done, err := e.stream.Done()
		if done || err != nil {
			return err
		}
		if err := x.failed(); err != nil {
			return errors.Join(err, e.abortExchanges())
		}
		if time.Since(seen) > askedLate {
			if err := x.group.Late(x.run, time.Since(start)); err != nil {
				return errors.Join(err, e.abortExchanges())
			}
			seen = time.Now()
		}
		if time.Since(start) > 50*pause {
			pause = min(2*pause, askedSeldom)
		}
		time.Sleep(pause)
	}
}

// failed is the error of another participant, or of an exchange.
func (x *exchanges) failed() error {
	if err := x.group.Failed(); err != nil {
		return err
	}
	for _, c := range x.comms {
		if err := c.Failed(); err != nil {
			return err
		}
	}
	return nil
}

// aborting is how long ending the exchanges may take.
const aborting = 10 * time.Second

// abortExchanges ends all exchanges. Communicators end when no graph has exchanges of theirs any more, and graphs are closed when
// the GPU does not execute them any more.
func (e *executable) abortExchanges() error {
	x := e.exchanges
	done := make(chan error, len(x.comms))
	for _, c := range x.comms {
		go func() { done <- c.Abort() }()
	}
	late := time.After(aborting)
	for idle := false; !idle; time.Sleep(askedSeldom) {
		var err error
		if idle, err = e.stream.Done(); err != nil {
			return err
		}
		select {
		case <-late:
			return fmt.Errorf("exchanges have not ended %v after they were aborted", aborting)
		default:
		}
	}
	errs := []error{e.closeMeasured()}
	for i := range e.parts {
		if g := e.parts[i].graph; g != nil {
			e.parts[i].graph = nil
			errs = append(errs, g.Close())
		}
	}
	for range x.comms {
		select {
		case err := <-done:
			errs = append(errs, err)
		case <-late:
			return fmt.Errorf("communicators have not ended %v after they were aborted", aborting)
		}
	}
	for _, c := range x.comms {
		errs = append(errs, c.Close())
	}
	clear(x.comms)
	return errors.Join(errs...)
}

// close leaves the communicators, all participants in the same order: each waits for the others of a communicator. Graphs with
// exchanges are closed before.
func (x *exchanges) close() error {
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(x.comms)) {
		errs = append(errs, x.comms[key].Close())
	}
	if x.stream != nil {
		errs = append(errs, x.stream.Sync(), x.stream.Close())
	}
	for _, v := range append(x.ended, x.begun) {
		if v != nil {
			errs = append(errs, v.Close())
		}
	}
	return errors.Join(errs...)
}
