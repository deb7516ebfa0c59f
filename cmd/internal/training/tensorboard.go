package training

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"fusec/cmd/internal/cli"
	"fusec/examples/train"
)

// events is an event file of TensorBoard: records of a length, a message Event of protocol buffers, and checksums.
type events struct{ f *os.File }

// Fields of the messages Event, SessionLog, Summary and Summary.Value (tensorflow/core/util/event.proto and
// framework/summary.proto).
const (
	eventTime, eventStep, eventVersion, eventSummary, eventSession = 1, 2, 3, 5, 7

	sessionStatus, sessionStart = 1, 1
	summaryValue                = 1
	valueTag, valueSimple       = 1, 2
	eventFileVersion            = "brain.Event:2"
)

// openEvents begins an event file in dir, of a run that has done the given number of steps. If that is not 0,
// TensorBoard forgets the steps after it that earlier files in dir tell of.
func openEvents(dir string, steps int) (*events, error) {
	now := time.Now()
	host, err := os.Hostname()
	if err != nil {
		host = "localhost"
	}
	var f *os.File
	for i := 0; f == nil; i++ {
		name := fmt.Sprintf("events.out.tfevents.%010d.%s.%d.%d", now.Unix(), host, os.Getpid(), i)
		f, err = os.OpenFile(filepath.Join(dir, name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, fmt.Errorf("--tensorboard: writing %s: %w", filepath.Join(dir, name), cli.Cause(err))
		}
	}
	w := &events{f}
	version := protowire.AppendString(protowire.AppendTag(nil, eventVersion, protowire.BytesType), eventFileVersion)
	if err := w.event(now, 0, version); err != nil {
		return nil, err
	}
	if steps == 0 {
		return w, nil
	}
	start := protowire.AppendVarint(protowire.AppendTag(nil, sessionStatus, protowire.VarintType), sessionStart)
	return w, w.event(now, steps+1, protowire.AppendBytes(protowire.AppendTag(nil, eventSession, protowire.BytesType), start))
}

// write adds the scalars of a step, of which batch samples took part.
func (w *events) write(x train.Record, batch int, skipped int64) error {
	var summary []byte
	add := func(tag string, v float64) {
		value := protowire.AppendString(protowire.AppendTag(nil, valueTag, protowire.BytesType), tag)
		value = protowire.AppendFixed32(protowire.AppendTag(value, valueSimple, protowire.Fixed32Type),
			math.Float32bits(float32(v)))
		summary = protowire.AppendBytes(protowire.AppendTag(summary, summaryValue, protowire.BytesType), value)
	}
	add("train/loss", x.Loss)
	add("train/learning_rate", x.Rate)
	add("train/skipped_steps", float64(skipped))
	add("train/step_seconds", float64(batch)/x.Speed)
	for _, s := range x.Scores {
		add("eval/"+s.Name, s.Value)
	}
	for _, l := range x.Loads {
		total := 0
		for _, n := range l.Tokens {
			total += n
		}
		for i, n := range l.Tokens { // the share times the number of experts is 1 where all have the same
			add(fmt.Sprintf("experts/%s/%d", l.Name, i), float64(n*len(l.Tokens))/float64(max(total, 1)))
		}
	}
	return w.event(time.Now(), x.Step, protowire.AppendBytes(protowire.AppendTag(nil, eventSummary, protowire.BytesType), summary))
}

// event writes a message whose last field is what.
func (w *events) event(at time.Time, step int, what []byte) error {
	m := protowire.AppendFixed64(protowire.AppendTag(nil, eventTime, protowire.Fixed64Type),
		math.Float64bits(float64(at.UnixMicro())/1e6))
	m = protowire.AppendVarint(protowire.AppendTag(m, eventStep, protowire.VarintType), uint64(step))
	m = append(m, what...)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(m)))
	b = binary.LittleEndian.AppendUint32(b, masked(b))
	b = append(b, m...)
	_, err := w.f.Write(binary.LittleEndian.AppendUint32(b, masked(m)))
	return err
}

// masked is the checksum of a record, which may be part of other data with a checksum.
func masked(b []byte) uint32 {
	c := crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	return (c>>15 | c<<17) + 0xa282ead8
}

// Close ends the file.
func (w *events) Close() error { return w.f.Close() }
