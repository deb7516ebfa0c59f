package group

import "fmt"

// Sub is some of the participants of a transport as a transport of their own: those of the given ranks, which count from 0 in their
// order. This participant is one of them. Sub shares the transport: one goroutine uses either at a time, and closing Sub does
// nothing. Errors name participants by their ranks in the whole.
func Sub(t Transport, ranks []int) (Transport, error) {
	team, err := New(t).Team(ranks)
	if err != nil {
		return nil, err
	}
	return &sub{Transport: t, team: team}, nil
}

type sub struct {
	Transport
	team        *Team
	sends, gets []Message
}

// Rank implements [Transport].
func (s *sub) Rank() int { return s.team.Place() }

// Size implements [Transport].
func (s *sub) Size() int { return s.team.Size() }

// Exchange implements [Transport].
func (s *sub) Exchange(send, receive []Message) error {
	s.sends, s.gets = s.whole(s.sends[:0], send), s.whole(s.gets[:0], receive)
	return s.Transport.Exchange(s.sends, s.gets)
}

// whole appends messages with their peers' ranks in the whole.
func (s *sub) whole(to, list []Message) []Message {
	for _, m := range list {
		to = append(to, Message{s.team.ranks[m.Peer], m.Bytes})
	}
	return to
}

// Threads is that of the whole.
func (s *sub) Threads() bool { return s.team.g.Threads() }

// Failed is that of the whole.
func (s *sub) Failed() error { return s.team.Failed() }

// Close implements [Transport].
func (s *sub) Close() error { return nil }

// Sub is the group of some of the participants; see the function of that name.
func (g *Group) Sub(ranks []int) (*Group, error) {
	t, err := Sub(g.t, ranks)
	if err != nil {
		return nil, fmt.Errorf("a part of the group: %w", err)
	}
	return New(t), nil
}
