package appliance

import (
	"context"
	"fmt"
	"math"
	"strings"

	"smolgym/appliance/engine"
	"smolgym/store"
)

// Disk is how the data folder stands, in bytes.
type Disk struct {
	Folder string
	File   int64 // the store's file
	Unused int64 // of it, to be written again
	Free   int64 // what the file system has left; -1 where it can't be told
}

// Disk says how much room the data folder has.
func (a *Appliance) Disk() (Disk, error) {
	u, err := a.db.Usage()
	if err != nil {
		return Disk{}, problemOf("measure the store", err)
	}
	return Disk{Folder: a.opt.Data, File: u.File, Unused: u.Free, Free: freeBytes(a.opt.Data)}, nil
}

// Agreement is how far the ways to a token's log-probability differ for the same
// weights. All are to be 0.
type Agreement struct {
	Tokens  int     // that were compared
	Batched float64 // sampled alone against sampled among others
	Scored  float64 // sampled against scored as a prompt
	Forward float64 // sampled against the forward pass of training
	Trained float64 // sampled against forward_backward
}

// Largest is the largest of the differences.
func (g Agreement) Largest() float64 { return max(g.Batched, g.Scored, g.Forward, g.Trained) }

// Agree samples from a model or checkpoint and computes the same log-probabilities
// in the other ways.
func (a *Appliance) Agree(ctx context.Context, model string) (Agreement, error) {
	g, err := a.agree(ctx, model)
	if err != nil {
		return g, problemOf("examine "+model, err)
	}
	return g, nil
}

func (a *Appliance) agree(ctx context.Context, model string) (g Agreement, err error) {
	s, err := a.chatSampler(model)
	if err != nil {
		return g, err
	}
	w, err := a.weightsOf(ctx, s)
	if err != nil {
		return g, err
	}
	defer s.put(w)
	info := w.Base().Info()
	length := min(6, max(1, info.Context/4))
	n := min(24, info.Context-length-1)
	if n < 1 {
		return g, Problemf(CodeUser, "the context of %s is %d tokens; at least 3 are needed", info.Name, info.Context)
	}
	prompt := make([]int32, length)
	for i := range prompt {
		prompt[i] = int32((i*7 + 3) % info.Vocab)
	}
	request := engine.SampleRequest{Weights: w, Prompt: prompt, Count: 4, Params: engine.SampleParams{MaxTokens: n, Seed: 1, Temperature: 1, TopP: 1, NoEOS: true}}
	group, err := a.sampled(ctx, request)
	if err != nil {
		return g, err
	}
	request.Count = 1
	alone, err := a.sampled(ctx, request)
	if err != nil {
		return g, err
	}
	first := group.Sequences[0]
	g.Tokens, g.Batched = len(first.Tokens), apart(first.Logprobs, alone.Sequences[0].Logprobs)
	whole := append(append([]int32{}, prompt...), first.Tokens...)
	scored, err := a.sampled(ctx, engine.SampleRequest{Weights: w, Prompt: whole, Count: 1, PromptLogprobs: true,
		Params: engine.SampleParams{MaxTokens: 1, Temperature: 1, TopP: 1, NoEOS: true}})
	if err != nil {
		return g, err
	}
	g.Scored = apart(first.Logprobs, scored.PromptLogprobs[length:])
	forward, trained, err := a.trainedScores(ctx, s, whole)
	if err != nil {
		return g, err
	}
	g.Forward, g.Trained = apart(first.Logprobs, forward[length-1:]), apart(first.Logprobs, trained[length-1:])
	return g, nil
}

// sampled waits for a request's samples.
func (a *Appliance) sampled(ctx context.Context, r engine.SampleRequest) (*engine.SampleResult, error) {
	done := make(chan error, 1)
	var res *engine.SampleResult
	r.Done = func(out *engine.SampleResult, err error) {
		res = out
		done <- err
	}
	held, err := a.eng.Begin(r)
	if err != nil {
		return nil, err
	}
	select {
	case err := <-done:
		return res, err
	case <-ctx.Done():
		held.Cancel()
		return nil, ctx.Err()
	}
}

// trainedScores computes the log-probabilities of a text's tokens as training does,
// forward only and with gradients, by a trainer of the sampler's weights.
func (a *Appliance) trainedScores(ctx context.Context, s *sampler, whole []int32) (forward, backward []float32, err error) {
	var cp *store.Checkpoint
	adapter := store.Adapter{Rank: 1, Alpha: alpha, TrainAttn: true} // fresh: it adds nothing
	if strings.HasPrefix(s.rec.ModelPath, "tinker://") {
		found, err := a.Checkpoint(s.rec.ModelPath)
		if err != nil {
			return nil, nil, err
		}
		cp, adapter = &found, found.Adapter
	}
	n := len(whole) - 1
	targets, weights := make([]int64, n), make([]float32, n)
	for i := range targets {
		targets[i], weights[i] = int64(whole[i+1]), 1
	}
	batch := Batch{Loss: "cross_entropy", Data: []Datum{{Tokens: whole[:n], Inputs: map[string]Tensor{"target_tokens": {I64: targets}, "weights": {F32: weights}}}}}
	err = a.onOwner(ctx, func() error {
		b, err := a.loadedBase(s.rec.BaseModel)
		if err != nil {
			return err
		}
		t, err := b.eng.NewTrainer(trainerConfig(adapter))
		if err != nil {
			return err
		}
		defer t.Release()
		if cp != nil {
			if err := a.load(t, *cp, false); err != nil {
				return err
			}
		}
		for _, way := range []struct {
			only bool
			dst  *[]float32
		}{{true, &forward}, {false, &backward}} {
			batch.ForwardOnly = way.only
			out, err := t.ForwardBackward(batch)
			if err != nil {
				return err
			}
			*way.dst = out.Logprobs[0]
		}
		return nil
	})
	if err == nil && (len(forward) != n || len(backward) != n) {
		err = fmt.Errorf("%d and %d log-probabilities of %d tokens", len(forward), len(backward), n)
	}
	return forward, backward, err
}

// apart is the largest difference; lists of different lengths are infinitely far apart.
func apart(x, y []float32) float64 {
	if len(x) != len(y) {
		return math.Inf(1)
	}
	d := 0.0
	for i := range x {
		if math.Float32bits(x[i]) != math.Float32bits(y[i]) {
			d = max(d, math.Abs(float64(x[i])-float64(y[i])), math.SmallestNonzeroFloat32)
		}
	}
	return d
}
