package examples

import (
	"errors"
	"fmt"
	"math"

	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph"
	"fusec/graph/optim"
	"fusec/testdata"
)

// Vocabulary is the number of tokens of the language models: the bytes of ASCII.
const Vocabulary = 128

// heldOut is the share of a text, at its end, that is not trained on.
const heldOut = 0.1

// knownOf is how many of the given number of bytes are trained on.
func knownOf(bytes int) int { return bytes - int(heldOut*float64(bytes)) }

// novelSamples is the number of windows of the novel that have no byte in common.
var novelSamples = knownOf(len(testdata.Novel)) / contextLength

// tokensOf are the bytes of a text as tokens.
func tokensOf(text []byte) ([]int, error) {
	tokens := make([]int, len(text))
	for i, c := range text {
		if c >= Vocabulary {
			return nil, fmt.Errorf("byte %d of the text is %#x, which is no ASCII", i, c)
		}
		tokens[i] = int(c)
	}
	return tokens, nil
}

// textTask trains a model that build makes for tokens [batch, context] to predict a text's next byte.
func textTask(text []byte, s train.Settings, context int, build builder) (*train.Task, error) {
	if err := s.Check(); err != nil {
		return nil, err
	}
	tokens, err := tokensOf(text)
	if err != nil {
		return nil, err
	}
	known, test := tokens[:knownOf(len(tokens))], tokens[knownOf(len(tokens)):]
	if len(known) <= context || len(test) < 2 {
		return nil, fmt.Errorf("a text of %d bytes is too short for windows of %d", len(text), context)
	}
	m, err := classifier(s, build)
	if err != nil {
		return nil, err
	}
	forward, err := build(1)
	if err == nil {
		err = forward.Share(m)
	}
	if err != nil {
		return nil, err
	}
	x, err := train.Zeroed(m.Inputs[0])
	y, err2 := train.Zeroed(m.Inputs[1])
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	judge, err := newTextJudge(m, s, context, test, build)
	if err != nil {
		return nil, err
	}
	return &train.Task{
		Model: m, Forward: forward,
		Optimizer: &optim.Optimizer{Rule: optim.AdamW{Beta2: 0.98, Decay: 0.1},
			Rate: optim.WarmupCosine(s.Rate, s.Rate/20, s.Steps/20, s.Steps), Clip: 1, Group: optim.DecayMatrices},
		Fill: func(step int) error {
			for i := range s.Batch {
				w := graph.Philox(s.Seed, uint64(step*s.Batch+i))
				start := int((uint64(w[0])<<32 | uint64(w[1])) % uint64(len(known)-context))
				copy(x.Ints()[i*context:][:context], known[start:])
				copy(y.Ints()[i*context:][:context], known[start+1:])
			}
			return nil
		},
		Evaluate: judge.scores,
		Release:  judge.score.vm.Close,
	}, nil
}

// textJudge measures how well a model predicts a text it has not seen: every byte of it once, except the first.
type textJudge struct {
	score   *scorer
	x, y    *tensor.Dense
	context int
	test    []int
}

// judgeBatch is the number of windows that are predicted at a time.
const judgeBatch = 16

func newTextJudge(trained *train.Model, s train.Settings, context int, test []int, build builder) (*textJudge, error) {
	m, err := build(judgeBatch)
	if err == nil {
		err = Classify(m)
	}
	if err != nil {
		return nil, err
	}
	j := &textJudge{context: context, test: test}
	if j.score, err = newScorer(m, trained, s); err != nil {
		return nil, err
	}
	if j.x, err = train.Zeroed(m.Inputs[0]); err == nil {
		j.y, err = train.Zeroed(m.Inputs[1])
	}
	if err != nil {
		return nil, errors.Join(err, j.score.vm.Close())
	}
	return j, nil
}

// scores returns the mean −log₂ of the probability of each byte, given those before it in its window.
func (j *textJudge) scores() ([]train.Score, error) {
	nats, predicted := 0.0, 0
	for at := 0; at < len(j.test)-1; {
		valid := 0
		for i := range j.y.Ints() {
			j.x.Ints()[i], j.y.Ints()[i] = 0, -1 // no label
			if at+1 < len(j.test) {
				j.x.Ints()[i], j.y.Ints()[i] = j.test[at], j.test[at+1]
				at, valid = at+1, valid+1
			}
		}
		cost, err := j.score.run()
		if err != nil {
			return nil, err
		}
		mean := float64(cost.Data().(float32))
		nats += mean * float64(valid)
		predicted += valid
	}
	return []train.Score{{Name: "bits per character", Value: nats / float64(predicted) / math.Ln2}}, nil
}

// novel is the task of learning the embedded novel.
func novel(s train.Settings, context int, build builder) (*train.Task, error) {
	return textTask(testdata.Novel, s, context, build)
}
