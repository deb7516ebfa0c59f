package graph

import "fmt"

// Note is a remark of the front end, for reports. It changes no value, and passes do not read it.
type Note struct {
	Kind  NoteKind
	Topic string // the topic of a Divergence or an Imitation in docs/divergences.md; else empty
	Text  string
	Node  *Node // the subject, or nil
}

// NoteKind is the kind of a note.
type NoteKind uint8

// The kinds of notes.
const (
	Remark     NoteKind = iota // anything else
	Divergence                 // the graph computes something else than its framework does
	Imitation                  // the graph computes what its framework does, against documentation or mathematics
)

var noteKinds = [...]string{"remark", "divergence", "imitation"}

// String gives the kind's name in the text form.
func (k NoteKind) String() string { return noteKinds[k] }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *NoteKind) UnmarshalText(b []byte) (err error) {
	*k, err = parseEnum(string(b), NoteKind.String, len(noteKinds))
	return
}

// check refuses notes that the text form cannot represent.
func (n Note) check() error {
	switch {
	case int(n.Kind) >= len(noteKinds):
		return fmt.Errorf("note of an unknown kind %d", n.Kind)
	case (n.Topic == "") != (n.Kind == Remark):
		return fmt.Errorf("%v with the topic %q: remarks have no topic, and other notes need one", n.Kind, n.Topic)
	case n.Topic != "" && !isBareName(n.Topic):
		return fmt.Errorf("topic %q of a note is not a word", n.Topic)
	}
	return nil
}
