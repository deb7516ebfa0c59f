package graph

import "fmt"

// Note is a remark of the front end that a graph came from, for reports. It changes no value, and passes do not read it.
type Note struct {
	Kind  NoteKind
	Topic string // what a Divergence or an Imitation is about, as docs/divergences.md names it; else empty
	Text  string
	Node  *Node // that it is about, or nil
}

// NoteKind sorts notes, so that they can be counted.
type NoteKind uint8

// The kinds of notes.
const (
	Remark     NoteKind = iota // anything else
	Divergence                 // the graph means something else than the framework that it came from computes
	Imitation                  // the graph means what that framework computes, which its documentation or mathematics does not say
)

var noteKinds = [...]string{"remark", "divergence", "imitation"}

// String gives the kind's name in the text form.
func (k NoteKind) String() string { return noteKinds[k] }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *NoteKind) UnmarshalText(b []byte) (err error) {
	*k, err = parseEnum(string(b), NoteKind.String, len(noteKinds))
	return
}

// check refuses what the text form could not write.
func (n Note) check() error {
	switch {
	case int(n.Kind) >= len(noteKinds):
		return fmt.Errorf("note of an unknown kind %d", n.Kind)
	case (n.Topic == "") != (n.Kind == Remark):
		return fmt.Errorf("%v with the topic %q: remarks have none, and others need one", n.Kind, n.Topic)
	case n.Topic != "" && !isBareName(n.Topic):
		return fmt.Errorf("topic %q of a note is not a word", n.Topic)
	}
	return nil
}
