//go:build gpu

package gpu

// Exchanges between the GPUs of one host that read and write one another's memory. Values that are moved as they are go by copy
// engines, which take no multiprocessor from the launches beside them, and so do the terms of large sums; see sums.go. Small sums
// are made by one block of threads.

/*
#include "native.h"
*/
import "C"

import (
	"bytes"
	_ "embed"
	"encoding/binary"
	"errors"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/group"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/driver/nvrtc"
)

const (
	// leastCopy is how many bytes an exchange has, at least, that copy engines make: participants wait for one another twice in it.
	leastCopy = 1 << 20
	// mostSum is how many bytes a sum has, at most, that one block of threads makes: 4·WORDS of sum.cu.
	mostSum = 64 << 10
	// mostPeers is how many participants reach one another's memory, at most: PEERS of sum.cu.
	mostPeers = 8
)

//go:embed sum.cu
var sumSource string

// peers is the memory of the participants of a communicator.
//
// Each has words that others set to 1, one for each of them in each round of an exchange. Behind them are a word that is 1, the
// number of small sums so far, a word that ends the waiting, and two places for the terms of all.
type peers struct {
	c       *comm
	memory  driver.Ptr
	at      []C.CUdeviceptr                // the memory of each
	known   map[driver.Ptr][]C.CUdeviceptr // what all have at an address here
	maps    map[string]C.CUdeviceptr       // by handle
	load    func() error                   // loads the next three, once
	module  driver.Module
	small   driver.Function
	large   driver.Function
	staging driver.Ptr // mostStaged bytes for the terms of large sums, or 0
	closed  sync.Once
	idle    chan struct{} // closed when nothing waits here any more
}

// The rounds of an exchange: operands are ready; what was read of others is not needed any more, and sums are ready; sums are read.
// A participant tells a round only after it has awaited the one before, so a word is taken back before it is set again: two
// neighbouring rounds have words of their own, and so have the last round of an exchange and the first one of the next.
const (
	readyRound = iota * mostPeers
	usedRound
	summedRound
)

// The words behind those of the rounds.
const (
	oneWord = summedRound + mostPeers + iota
	countWord
	stopWord
	wordBytes = 256 // in front of the terms
)

// sumParams is the parameter of the function in sum.cu.
type sumParams struct {
	to                  [mostPeers]uint64
	x, y, count, stop   uint64
	n, rank, words, b16 int32
}

// newPeers maps the memory of all participants, or gives nil where some GPU cannot reach another's. All call it together.
func newPeers(c *comm) (*peers, error) {
	n := c.team.Size()
	if n < 2 || n > mostPeers || os.Getenv("FUSEC_PEER_MEMORY") == "0" {
		return nil, nil
	}
	p := &peers{c: c, known: map[driver.Ptr][]C.CUdeviceptr{}, maps: map[string]C.CUdeviceptr{}, idle: make(chan struct{})}
	p.load = sync.OnceValue(p.loadSums)
	mappings.Lock()
	mappings.open[p] = true
	mappings.Unlock()
	err := p.open()
	lacks := []byte{0}
	if err != nil {
		lacks[0] = 1
	}
	all := make([]byte, n)
	if failed := c.team.Gather(lacks, all); failed != nil {
		return nil, errors.Join(failed, p.close())
	}
	if slices.Max(all) > 0 {
		return nil, p.close()
	}
	return p, nil
}

// open allocates the own memory and maps that of the others. It exchanges the same with them whether it fails or not.
func (p *peers) open() error {
	g := p.c.g
	size := int64(wordBytes + 2*p.c.team.Size()*2*mostSum)
	var err error
	if p.memory, err = g.Alloc(size); err == nil {
		err = p.fill(0, 0, size/4)
	}
	if err == nil {
		err = p.fill(oneWord, 1, 1)
	}
	var located error
	p.at, located = p.locate(p.memory)
	return errors.Join(err, located)
}

// fill sets words of the own memory, and waits until they are set.
func (p *peers) fill(first int, word uint, n int64) error {
	return p.c.g.native("cuMemsetD32", func(x C.CUcontext) C.CUresult {
		return C.fusec_fill(x, C.CUdeviceptr(p.memory)+C.CUdeviceptr(4*first), C.uint(word), C.size_t(n), nil)
	})
}

// locationBytes is the size of a location, which says where memory of a participant is: on which boot of which host, in which
// process, on which device, the address, its offset in a block of memory and the handle of that. A mapped block has no handle.
const locationBytes = 40 + 4*8 + 64

// locate finds out where all participants have what is at an address here. All call it together.
func (p *peers) locate(at driver.Ptr) ([]C.CUdeviceptr, error) {
	if list := p.known[at]; list != nil {
		return list, nil
	}
	g, n := p.c.g, p.c.team.Size()
	own := make([]byte, locationBytes)
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	copy(own[:40], boot)
	var base C.CUdeviceptr
	var handle C.CUipcMemHandle
	if err == nil {
		err = g.native("cuMemGetAddressRange", func(x C.CUcontext) C.CUresult { return C.fusec_block(x, C.CUdeviceptr(at), &base) })
	}
	if err == nil && !g.mapped {
		err = g.native("cuIpcGetMemHandle", func(x C.CUcontext) C.CUresult { return C.fusec_share(x, base, &handle) })
	}
	for i, v := range []uint64{uint64(os.Getpid()), uint64(g.dev), uint64(at), uint64(at) - uint64(base)} {
		binary.LittleEndian.PutUint64(own[40+8*i:], v)
	}
	copy(own[72:], unsafe.Slice((*byte)(unsafe.Pointer(&handle)), 64))
	all := make([]byte, n*locationBytes)
	if failed := p.c.team.Gather(own, all); failed != nil || err != nil {
		return nil, errors.Join(err, failed)
	}
	list := make([]C.CUdeviceptr, n)
	for i := range list {
		if list[i], err = p.reach(i, own, all[i*locationBytes:][:locationBytes]); err != nil {
			return nil, err
		}
	}
	mappings.Lock()
	defer mappings.Unlock()
	p.known[at] = list // others read it
	return list, nil
}

// reach is the address here of what a participant has at a location.
func (p *peers) reach(place int, own, at []byte) (to C.CUdeviceptr, err error) {
	g := p.c.g
	number := func(b []byte, k int) uint64 { return binary.LittleEndian.Uint64(b[40+8*k:]) }
	switch {
	case place == p.c.team.Place():
		return C.CUdeviceptr(number(own, 2)), nil
	case !bytes.Equal(own[:40], at[:40]):
		return 0, errors.New("the participants are on several hosts")
	case number(own, 0) == number(at, 0):
		var yes C.int
		err := failure("cuDeviceCanAccessPeer", C.fusec_reaches(C.CUdevice(g.dev), C.CUdevice(number(at, 1)), &yes))
		if err == nil && (!g.mapped || yes == 0) {
			err = errors.New("another participant's memory in this process is not mapped here")
		}
		return C.CUdeviceptr(number(at, 2)), err
	case g.mapped:
		return 0, errors.New("memory that is mapped in this process is not shared with others")
	}
	key := string(at[72:])
	if p.maps[key] == 0 {
		err := g.native("cuIpcOpenMemHandle", func(x C.CUcontext) C.CUresult {
			return C.fusec_map(x, (*C.CUipcMemHandle)(unsafe.Pointer(&at[72])), &to)
		})
		if err != nil {
			return 0, err
		}
		p.maps[key] = to
	}
	return p.maps[key] + C.CUdeviceptr(number(at, 3)), nil
}

// makes reports whether an exchange is made here and not by NCCL. All participants say the same.
func (p *peers) makes(x driver.Exchange, of []driver.Exchange) bool {
	switch {
	case p == nil:
		return false
	case p.sumsSmall(of):
		return true
	}
	switch x.Op.(type) {
	case graph.Permute, graph.AllGather, graph.AllToAll:
		return operandBytes(x) >= leastCopy
	}
	return p.sumsLarge(x, of)
}

// sumsSmall reports whether exchanges are one sum that queueSum makes. NCCL makes several together.
func (p *peers) sumsSmall(of []driver.Exchange) bool {
	_, all := of[0].Op.(graph.AllReduce)
	n := operandBytes(of[0])
	return len(of) == 1 && all && isSum(of[0]) && n <= mostSum && n%4 == 0
}

// operandBytes is how many bytes an operand has.
func operandBytes(x driver.Exchange) int { return x.Elems * x.DType.Size() }

// isSum reports whether an exchange gives sums of a type that the kernels of sum.cu add up.
func isSum(x driver.Exchange) bool {
	var fn graph.ReduceFn
	switch op := x.Op.(type) {
	case graph.AllReduce:
		fn = op.Fn
	case graph.ReduceScatter:
		fn = op.Fn
	default:
		return false
	}
	return fn == graph.Sum && (x.DType == graph.F32 || x.DType == graph.BF16)
}

// queue queues exchanges that are made here.
func (p *peers) queue(s *stream, list []driver.Exchange) error {
	if p.sumsSmall(list) {
		return p.queueSum(s, list[0])
	}
	var sums []driver.Exchange
	for _, x := range list {
		if isSum(x) {
			sums = append(sums, x)
		} else if err := p.queueCopies(s, x); err != nil {
			return err
		}
	}
	return p.queueSums(s, sums)
}

// queueSum sums small values: each participant writes its terms, with the number of the sum beside each word, into the memory of
// all others, and adds up what comes in the order of the participants.
func (p *peers) queueSum(s *stream, x driver.Exchange) error {
	if err := p.load(); err != nil {
		return err
	}
	own := uint64(p.memory)
	a := sumParams{x: uint64(x.X), y: uint64(x.Y), count: own + 4*countWord, stop: own + 4*stopWord, n: int32(len(p.at)),
		rank: int32(p.c.team.Place()), words: int32(operandBytes(x) / 4)}
	if x.DType == graph.BF16 {
		a.b16 = 1
	}
	for i, at := range p.at {
		a.to[i] = uint64(at) + wordBytes
	}
	return s.Launch(p.small, [3]int{1, 1, 1}, 1024, 0, unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a)))
}

func (p *peers) loadSums() error {
	c, err := nvrtc.Open()
	if err != nil {
		return err
	}
	image, _, err := c.Compile(sumSource, p.c.g.chip)
	if err != nil {
		return err
	}
	if p.module, err = p.c.g.Load(image); err != nil {
		return err
	}
	if p.small, err = p.module.Function("sum_small"); err != nil {
		return err
	}
	p.large, err = p.module.Function("sum_large")
	return err
}

// A pull is a part of a result, read from the memory of the participant at a place.
type pull struct {
	from   int
	at, to C.CUdeviceptr
	bytes  int
}

// queueCopies queues copies. Those whose operands are read wait until these are read, and those that read until they are ready.
func (p *peers) queueCopies(s *stream, x driver.Exchange) error {
	n, place := p.c.team.Size(), p.c.team.Place()
	list, err := p.locate(x.X)
	if err != nil {
		return err
	}
	all, y := operandBytes(x), C.CUdeviceptr(x.Y)
	var pulls []pull
	readers := p.others()
	sources := readers
	switch op := x.Op.(type) {
	case graph.Permute:
		next, last := group.Neighbours(place, op.Shift, n)
		pulls = []pull{{last, list[last], y, all}}
		if readers, sources = []int{next}, []int{last}; next == place {
			readers, sources = nil, nil
		}
	case graph.AllGather:
		for i := range n {
			pulls = append(pulls, pull{i, list[i], y + C.CUdeviceptr(i*all), all})
		}
	case graph.AllToAll:
		part := all / n
		for i := range n {
			pulls = append(pulls, pull{i, list[i] + C.CUdeviceptr(place*part), y + C.CUdeviceptr(i*part), part})
		}
	}
	if err := p.meet(s, readyRound, readers, sources); err != nil {
		return err
	}
	if err := p.pull(s, pulls); err != nil {
		return err
	}
	return p.meet(s, usedRound, sources, readers)
}

// others are the places of the other participants.
func (p *peers) others() (list []int) {
	for i := range p.at {
		if i != p.c.team.Place() {
			list = append(list, i)
		}
	}
	return list
}

// pull copies. Each participant begins with another one.
func (p *peers) pull(s *stream, list []pull) error {
	n, place := p.c.team.Size(), p.c.team.Place()
	slices.SortStableFunc(list, func(a, b pull) int { return (a.from-place+n)%n - (b.from-place+n)%n })
	for _, c := range list {
		if err := p.copy(s, c.to, c.at, c.bytes); err != nil {
			return err
		}
	}
	return nil
}

// meet tells some participants that this one has come to a round, and waits until others have.
func (p *peers) meet(s *stream, round int, tell, await []int) error {
	for _, i := range tell {
		one := C.CUdeviceptr(p.memory) + 4*oneWord
		if err := p.copy(s, p.at[i]+C.CUdeviceptr(4*(round+p.c.team.Place())), one, 4); err != nil {
			return err
		}
	}
	return p.await(s, await, round)
}

func (p *peers) copy(s *stream, to, from C.CUdeviceptr, n int) error {
	s.other()
	return s.g.native("cuMemcpyDtoDAsync", func(x C.CUcontext) C.CUresult {
		return C.fusec_copy(x, to, from, C.size_t(n), s.native())
	})
}

// await waits for the words of some participants, from word first on, and takes them back.
func (p *peers) await(s *stream, of []int, first int) error {
	if len(of) == 0 {
		return nil
	}
	words := make([]C.CUdeviceptr, len(of))
	for i, from := range of {
		words[i] = C.CUdeviceptr(p.memory) + C.CUdeviceptr(4*(first+from))
	}
	return s.await(words...)
}

// How often, and for how long, what waits is told to go on after an exchange was ended.
const (
	endingPause = time.Millisecond
	endingTime  = 10 * time.Second
)

// end has all that waits for others go on, with what is there, and closes when they have ended, too.
func (p *peers) end() error {
	err := p.fillBeside()
	go func() {
		end := time.Now().Add(endingTime)
		for filling := true; filling && time.Now().Before(end); {
			select {
			case <-p.idle:
				filling = false
			case <-time.After(endingPause):
				filling = p.fillBeside() == nil
			}
		}
		time.Sleep(time.Until(end))
		_ = p.close() // nobody is left who would be told
	}()
	return err
}

// fillBeside sets all words that are waited for, beside what the GPU does.
func (p *peers) fillBeside() error {
	made, err := p.c.g.NewUrgentStream()
	if err != nil {
		return err
	}
	s := made.(*stream)
	at := C.CUdeviceptr(p.memory)
	err = s.g.native("cuMemsetD32Async", func(x C.CUcontext) C.CUresult {
		if r := C.fusec_fill(x, at+4*stopWord, 1, 1, s.native()); r != 0 {
			return r
		}
		return C.fusec_fill(x, at, 1, oneWord, s.native())
	})
	return errors.Join(err, s.Sync(), s.Close())
}

// close unmaps the memory of the others, and frees the own.
func (p *peers) close() error {
	if p == nil {
		return nil
	}
	var errs []error
	p.closed.Do(func() {
		mappings.Lock()
		delete(mappings.open, p)
		errs = append(errs, unmapFreed())
		mappings.Unlock()
		for _, at := range p.maps {
			errs = append(errs, p.c.g.release("cuIpcCloseMemHandle", func() error { return p.c.g.unmap(at) }))
		}
		if p.module != nil {
			errs = append(errs, p.module.Unload())
		}
		if p.staging != 0 {
			errs = append(errs, p.c.g.Free(p.staging))
		}
		errs = append(errs, p.c.g.Free(p.memory))
	})
	return errors.Join(errs...)
}

// unmap unmaps another process's memory.
func (g *device) unmap(at C.CUdeviceptr) error {
	return failure("cuIpcCloseMemHandle", C.fusec_unmap(*(*C.CUcontext)(unsafe.Pointer(&g.context)), at))
}
