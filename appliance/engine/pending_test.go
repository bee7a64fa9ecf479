package engine

import (
	"errors"
	"fmt"
	"slices"
	"testing"
)

// TestCancel: a request is given up while it is queued, in its prompt, among its
// samples and after its end; Done is called once, the pages come back and the
// others get the tokens they have alone.
func TestCancel(t *testing.T) {
	x := start(t, devices(t)["reference"], "llama_tied", Options{Context: 96, CacheTokens: 224, DecodeTokens: 16})
	var w *Weights
	x.do(func() error { w = x.b.Weights(); return nil })
	request := func(i int) SampleRequest {
		return SampleRequest{Weights: w, Prompt: tokens(40, i), Count: 3, Params: SampleParams{MaxTokens: 30, Seed: uint64(i), Temperature: 1, TopP: 1, NoEOS: true}}
	}
	want := x.sample(request(1)).Sequences
	// Steps are taken by hand: the owner is kept inside a closure.
	x.do(func() error {
		d, ends := x.e.dec, map[int][]error{}
		begin := func(i int) (*Pending, error) {
			r := request(i)
			r.Done = func(res *SampleResult, err error) {
				ends[i] = append(ends[i], err)
				if i == 1 && err == nil {
					for k, s := range res.Sequences {
						if !slices.Equal(s.Tokens, want[k].Tokens) {
							t.Errorf("sample %d beside canceled ones: %v, alone %v", k, s.Tokens, want[k].Tokens)
						}
					}
				}
			}
			return x.e.Begin(r)
		}
		var pending []*Pending
		for i := range 5 {
			p, err := begin(i)
			if err != nil {
				return err
			}
			pending = append(pending, p)
		}
		steps := func(n int) {
			for range n {
				if d.due() {
					d.step()
				}
			}
		}
		steps(1)
		if !pending[0].Started() || pending[4].Started() {
			return fmt.Errorf("started: first %t, last %t", pending[0].Started(), pending[4].Started())
		}
		if d.run[0].index != -1 {
			return errors.New("the first prompt is through after one step; the test wants it in pieces")
		}
		pending[0].Cancel() // in its prompt
		pending[4].Cancel() // in the queue
		pending[4].Cancel()
		steps(6)
		for i := range 5 {
			if len(ends[i]) > 0 != (i == 0 || i == 4) {
				return fmt.Errorf("ends after two were canceled: %v", ends)
			}
		}
		for pending[2].j.begun < 2 { // the second of its samples is on its way
			steps(1)
		}
		pending[2].Cancel()
		for d.due() {
			d.step()
		}
		pending[1].Cancel() // after its end
		d.due()
		for i, canceled := range []bool{true, false, true, false, true} {
			if len(ends[i]) != 1 || errors.Is(ends[i][0], ErrCanceled) != canceled || !canceled && ends[i][0] != nil {
				return fmt.Errorf("request %d ended with %v", i, ends[i])
			}
		}
		return x.b.cache.balanced()
	})
}
