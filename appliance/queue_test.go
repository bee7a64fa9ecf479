package appliance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

// ask is a request for n tokens.
func ask(sampler string, seq int64, n int) SampleRequest {
	seed := uint64(seq)
	return SampleRequest{SamplerID: sampler, Seq: seq, Count: 1, Prompt: prompt(5), MaxTokens: &n, Seed: &seed, Temperature: 1, TopP: 1, Stop: &Stop{}}
}

// hold keeps the owner of the device busy until the returned function is called.
func hold(t *testing.T, a *Appliance) (release func()) {
	t.Helper()
	gate := make(chan struct{})
	running := make(chan struct{})
	go func() { _ = a.eng.Do(context.Background(), func() { close(running); <-gate }) }()
	<-running
	return func() { close(gate) }
}

// now polls without waiting.
func now(t *testing.T, a *Appliance, req CompletionsRequest) ([]Completion, int64) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	done, cursor, err := a.Completions(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return done, cursor
}

// collect polls a clone as a client does until it knows of n requests.
func collect(t *testing.T, a *Appliance, sampler string, clone int64, n int) (map[string]Completion, int64) {
	t.Helper()
	return collectFrom(t, a, sampler, clone, 0, n)
}

// collectFrom is collect after a cursor.
func collectFrom(t *testing.T, a *Appliance, sampler string, clone, cursor int64, n int) (map[string]Completion, int64) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ids := map[string]Completion{}
	for len(ids) < n {
		done, next, err := a.Completions(ctx, CompletionsRequest{SamplerID: sampler, Clone: clone, Cursor: cursor})
		if err != nil || len(done) == 0 {
			t.Fatalf("%d of %d completions: %v, %v", len(ids), n, err, ctx.Err())
		}
		if next <= cursor {
			t.Fatalf("cursor %d after %d", next, cursor)
		}
		for _, d := range done {
			if _, twice := ids[d.RequestID]; twice {
				t.Errorf("%s came twice", d.RequestID)
			}
			ids[d.RequestID] = d
		}
		cursor = next
	}
	return ids, cursor
}

// Every request of a clone, finished or failed, is told of once to the clone that
// asked, again to one that didn't hear, and its result is freed when the client has it.
func TestCompletions(t *testing.T) {
	a, sampler := sampling(t, 64)
	const clone = 7
	want := map[string]bool{} // failed
	for i := range int64(20) {
		req := ask(sampler, clone*cloneStride+i, 3)
		if i%5 == 0 {
			req.Prompt = []int32{999}
		}
		ticket, err := a.Sample(req)
		if err != nil {
			t.Fatal(err)
		}
		want[ticket.RequestID] = i%5 == 0
	}
	other, err := a.Sample(ask(sampler, 0, 2))
	if err != nil {
		t.Fatal(err)
	}
	ids, cursor := collect(t, a, sampler, clone, len(want))
	var names []string
	for id, failed := range want {
		d, ok := ids[id]
		if !ok || d.Failed != failed || (d.Size > 0) == failed {
			t.Errorf("%s: %+v, want failed %t", id, d, failed)
		}
		names = append(names, id)
	}
	if rest, last := now(t, a, CompletionsRequest{SamplerID: sampler, Clone: clone, Cursor: cursor}); len(rest) != 0 || last != cursor {
		t.Errorf("after the last: %v, cursor %d", rest, last)
	}
	if rest, _ := now(t, a, CompletionsRequest{SamplerID: sampler, Clone: clone}); len(rest) != 0 {
		t.Errorf("acknowledged completions came again: %v", rest)
	}
	// A lost answer is repeated.
	late, err := a.Sample(ask(sampler, clone*cloneStride+20, 2))
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		done, last, err := a.Completions(t.Context(), CompletionsRequest{SamplerID: sampler, Clone: clone, Cursor: cursor})
		if err != nil || len(done) != 1 || done[0].RequestID != late.RequestID || last != cursor+1 {
			t.Errorf("the next completion: %v, cursor %d, %v", done, last, err)
		}
	}
	// Fetched results are freed, those of other samplers or unfinished ones are not.
	for range 2 {
		if _, err := a.Retrieve(t.Context(), names[0]); err != nil {
			t.Fatal(err)
		}
	}
	now(t, a, CompletionsRequest{SamplerID: sampler, Clone: clone, Cursor: cursor, Retrieved: append(names, "nobody")})
	_, err = a.Retrieve(t.Context(), names[0])
	refused(t, err, CodeGone, names[0])
	if got, _ := collect(t, a, sampler, 0, 1); len(got) != 1 || got[other.RequestID].Failed {
		t.Errorf("the other clone: %v", got)
	}
	_, _, err = a.Completions(t.Context(), CompletionsRequest{SamplerID: "nobody"})
	refused(t, err, CodeNotFound, "nobody")
	_, _, err = a.Completions(t.Context(), CompletionsRequest{SamplerID: sampler, Clone: math.MaxInt64})
	refused(t, err, CodeUser, "clone")
}

// What a process that died had accepted is told of by the next one, so that a
// client that waits asks again; cursors go on rising.
func TestCompletionsOverRestart(t *testing.T) {
	dir := t.TempDir()
	for _, graceful := range []bool{true, false} {
		t.Run(fmt.Sprint(graceful), func(t *testing.T) {
			dir := dir + fmt.Sprint(graceful)
			a, session := ready(t, Options{Data: dir, Context: 64})
			sampler, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: "tiny"})
			if err != nil {
				t.Fatal(err)
			}
			var first []string
			for i := range int64(3) {
				ticket, err := a.Sample(ask(sampler, i, 2))
				if err != nil {
					t.Fatal(err)
				}
				first = append(first, ticket.RequestID)
			}
			_, cursor := collect(t, a, sampler, 0, 3)
			now(t, a, CompletionsRequest{SamplerID: sampler, Cursor: cursor, Retrieved: first})
			release := hold(t, a)
			open, err := a.Sample(ask(sampler, 3, 2))
			if err != nil {
				t.Fatal(err)
			}
			if graceful {
				go release()
				if err := a.Close(); err != nil {
					t.Fatal(err)
				}
			} else { // the store as a crash leaves it
				close(a.closing)
				a.stop()
				release()
				a.wg.Wait()
				a.record.flush()
				if err := errors.Join(a.dev.Close(), a.db.Close()); err != nil {
					t.Fatal(err)
				}
			}
			b := open2(t, dir)
			done, next := now(t, b, CompletionsRequest{SamplerID: sampler, Cursor: cursor})
			if !slices.ContainsFunc(done, func(d Completion) bool { return d.RequestID == open.RequestID }) || next <= cursor {
				t.Fatalf("after the restart: %d completions, cursor %d after %d; want %s among them", len(done), next, cursor, open.RequestID)
			}
			if most := reserveStep; graceful && len(done) > 1 || len(done) > most {
				t.Errorf("%d lost requests are told of", len(done))
			}
			_, err = b.Retrieve(t.Context(), open.RequestID)
			refused(t, err, CodeGone, open.RequestID)
			// The client asks again, with a new number or, if it got no answer, the same.
			for _, seq := range []int64{4, 3} {
				ticket, err := b.Sample(ask(sampler, seq, 2))
				result[SampleResult](t, b, ticket, err)
			}
			collectFrom(t, b, sampler, 0, next, 2)
		})
	}
}

func open2(t *testing.T, dir string) *Appliance { return open(t, Options{Data: dir, Context: 64}) }

// Client numbers of a sampler are never given twice, also not after a restart.
func TestJoinSampler(t *testing.T) {
	dir := t.TempDir()
	a, session := ready(t, Options{Data: dir})
	sampler, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan int64, 8)
	for range cap(got) {
		go func() {
			n, err := a.JoinSampler(sampler)
			if err != nil {
				t.Error(err)
			}
			got <- n
		}()
	}
	seen := map[int64]bool{}
	for range cap(got) {
		if n := <-got; n < 1 || seen[n] {
			t.Errorf("number %d", n)
		} else {
			seen[n] = true
		}
	}
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.Snapshot(SnapshotRequest{RunID: run, Seq: 1, SamplerSeq: 1})
	unnamed := result[SaveSamplerResult](t, a, ticket, err).SamplerID
	if n, err := a.JoinSampler(unnamed); n != 1 || err != nil {
		t.Errorf("first client of an unnamed sampler: %d, %v", n, err)
	}
	_, err = a.JoinSampler("nobody")
	refused(t, err, CodeNotFound, "nobody")
	shut(t, a)
	b := open(t, Options{Data: dir})
	if n, err := b.JoinSampler(sampler); err != nil || seen[n] {
		t.Errorf("after a restart: number %d, %v", n, err)
	}
}

// A canceled request fails wherever it is, is told of, and harms no other.
func TestCancelSample(t *testing.T) {
	a, sampler := sampling(t, 64)
	first, err := a.Sample(ask(sampler, 0, 2))
	result[SampleResult](t, a, first, err)
	release := hold(t, a)
	queued, err := a.Sample(ask(sampler, 1, 40))
	if err != nil {
		t.Fatal(err)
	}
	kept, err := a.Sample(ask(sampler, 2, 3))
	if err != nil {
		t.Fatal(err)
	}
	a.Cancel(queued.RequestID)
	a.Cancel(queued.RequestID)
	release()
	fails(t, a, queued, nil, "canceled")
	result[SampleResult](t, a, kept, nil)
	a.Cancel(kept.RequestID)
	result[SampleResult](t, a, kept, nil)
	a.Cancel("nobody")
	// One whose weights are still on their way.
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	cold, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: "tiny"})
	if err != nil {
		t.Fatal(err)
	}
	release = hold(t, a)
	early, err := a.Sample(ask(cold, 0, 40))
	if err != nil {
		t.Fatal(err)
	}
	a.Cancel(early.RequestID)
	release()
	fails(t, a, early, nil, "canceled")
	ids, _ := collect(t, a, sampler, 0, 3)
	if !ids[queued.RequestID].Failed || ids[kept.RequestID].Failed {
		t.Errorf("completions %v", ids)
	}
	if n := len(a.futures.samples); n != 0 || a.futures.prompts != 0 {
		t.Errorf("%d requests with %d bytes are open at the end", n, a.futures.prompts)
	}
}

// Over a limit a client is told to slow down; what was accepted is done, and then
// there is room again.
func TestBackpressure(t *testing.T) {
	for _, c := range []struct {
		name string
		opt  Options
		word string
	}{
		{"count", Options{Context: 64, OpenSamples: 3}, "3 requests"},
		{"bytes", Options{Context: 64, OpenPrompts: 60}, "15 tokens"}, // three prompts of five
	} {
		t.Run(c.name, func(t *testing.T) {
			a, session := ready(t, c.opt)
			sampler, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: "tiny"})
			if err != nil {
				t.Fatal(err)
			}
			release := hold(t, a)
			var accepted []Ticket
			for i := range int64(3) {
				ticket, err := a.Sample(ask(sampler, i, 2))
				if err != nil {
					t.Fatal(err)
				}
				accepted = append(accepted, ticket)
			}
			_, err = a.Sample(ask(sampler, 3, 2))
			refused(t, err, CodeBusy, c.word)
			if again, err := a.Sample(ask(sampler, 1, 2)); err != nil || again.RequestID != accepted[1].RequestID {
				t.Errorf("a repeat while the queue is full: %v, %v", again, err)
			}
			release()
			for _, ticket := range accepted {
				result[SampleResult](t, a, ticket, nil)
			}
			ticket, err := a.Sample(ask(sampler, 3, 2)) // the number wasn't used
			result[SampleResult](t, a, ticket, err)
		})
	}
}

// A request that waits says what for, with its position.
func TestSampleWaits(t *testing.T) {
	a, sampler := sampling(t, 64)
	first, err := a.Sample(ask(sampler, 0, 2))
	result[SampleResult](t, a, first, err)
	release := hold(t, a)
	var last Ticket
	for i := range int64(5) {
		if last, err = a.Sample(ask(sampler, 1+i, 2)); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.futures.mu.Lock()
	a.futures.pace.each = 10 * time.Second
	a.futures.mu.Unlock()
	ans, err := a.Retrieve(ctx, last.RequestID)
	if err != nil || ans.QueueState != queuePaused {
		t.Errorf("answer %+v, %v", ans, err)
	} else {
		contains(t, ans.Reason, "4 sample requests come first", "about 40 s", "waiting", "training")
	}
	release()
	result[SampleResult](t, a, last, nil)
}

// Targets are answered in the layout of the request, 0 where nothing was asked,
// with the bits of the prompt's own scores; draws come at every position.
func TestTargets(t *testing.T) {
	a, sampler := sampling(t, 64)
	p := prompt(10)
	req := func(seq int64) SampleRequest {
		r := ask(sampler, seq, 1)
		r.Prompt, r.PromptLogprobs, r.Temperature = p, true, 0.7
		return r
	}
	dense := &Targets{Rows: 9, Columns: 2, IDs: make([]int64, 18)}
	for i := range 9 {
		dense.IDs[2*i], dense.IDs[2*i+1] = int64(p[i+1]), -1
	}
	dense.IDs[17] = 3
	r := req(0)
	last := 2
	r.Targets, r.AltTokens, r.LastN = dense, 4, &last
	ticket, err := a.Sample(r)
	got := result[SampleResult](t, a, ticket, err)
	all := req(1)
	ticket, err = a.Sample(all)
	plain := result[SampleResult](t, a, ticket, err).PromptLogprobs
	lp := got.Targets.Logprobs
	for i := range 9 {
		if lp[2*i] != plain[i+1] {
			t.Errorf("row %d: %v, the prompt's token has %v", i, lp[2*i], plain[i+1])
		}
		if (lp[2*i+1] != 0) != (i == 8) {
			t.Errorf("row %d: %v where nothing, or token 3 in row 8, was asked", i, lp[2*i+1])
		}
	}
	for i, v := range got.PromptLogprobs { // the last two of the prompt, all of the targets
		if math.IsNaN(float64(v)) == (i >= 8) {
			t.Errorf("prompt logprob %d is %v with the last 2 asked for", i, v)
		}
	}
	if got.AltK != 4 || len(got.AltTokens) != 36 || len(got.AltLogprobs) != 36 || slices.Max(got.AltTokens) == slices.Min(got.AltTokens) {
		t.Errorf("draws %v", got.AltTokens)
	}
	for i, id := range got.AltTokens {
		if !(got.AltLogprobs[i] < 0) || id == p[i/4+1] && got.AltLogprobs[i] != plain[i/4+1] {
			t.Errorf("draw %d: token %d with %v", i, id, got.AltLogprobs[i])
		}
	}
	sparse := &Targets{Rows: 9, Columns: 1 << 40, Crow: []int64{0, 0, 0, 0, 3, 3, 3, 3, 3, 4}, Col: []int64{0, 5, 1 << 39, 7}, IDs: []int64{int64(p[4]), -1, 3, 3}}
	r = req(2)
	r.Targets = sparse
	ticket, err = a.Sample(r)
	s := result[SampleResult](t, a, ticket, err).Targets
	if len(s.Logprobs) != 4 || s.Logprobs[0] != plain[4] || s.Logprobs[1] != 0 || s.Logprobs[2] == 0 || s.Logprobs[3] != lp[17] || s.Columns != 1<<40 || !slices.Equal(s.Col, sparse.Col) {
		t.Errorf("sparse answer %+v", s)
	}
	for i, c := range []struct {
		targets *Targets
		alt     int
		word    string
	}{
		{&Targets{Rows: 8, Columns: 1, IDs: make([]int64, 8)}, 0, "8 rows"},
		{&Targets{Rows: 9, Columns: 1, IDs: slices.Repeat([]int64{-1}, 9)}, 0, "no token"},
		{&Targets{Rows: 9, Columns: 1, IDs: slices.Repeat([]int64{64}, 9)}, 0, "64"},
		{&Targets{Rows: 9, Columns: 1, IDs: slices.Repeat([]int64{1 << 33}, 9)}, 0, "8589934592"},
		{&Targets{Rows: 9, Columns: maxTargets, IDs: []int64{1}}, 0, "cells"},
		{nil, 1 << 30, "prompt_alt_tokens_k"},
	} {
		r := req(int64(10 + i))
		r.Targets, r.AltTokens = c.targets, c.alt
		ticket, err := a.Sample(r)
		fails(t, a, ticket, err, c.word)
	}
}

// A request's reason in training has a position, too.
func TestTrainingWaits(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	step(t, a, run, 1)
	release := hold(t, a)
	var last Ticket
	for i := range int64(3) {
		if last, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 3 + i, Batch: lesson()}); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	ans, err := a.Retrieve(ctx, last.RequestID)
	if err != nil || ans.QueueState != queueActive || !strings.Contains(ans.Reason, "2 requests of this run come first, about") {
		t.Errorf("answer %+v, %v", ans, err)
	}
	release()
	result[ForwardBackwardResult](t, a, last, nil)
}

// TestTrainingBackpressure: while too much waits a request is refused as busy,
// without using its number; the run's next is always taken, and repeats are.
func TestTrainingBackpressure(t *testing.T) {
	for _, c := range []struct {
		name string
		opt  Options
		word string
	}{
		{"count", Options{Context: 64, OpenRequests: 3}, "3 requests of the run wait"},
		{"bytes", Options{Context: 64, OpenBatches: 3000}, "bytes of training data"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, session := ready(t, c.opt)
			made, err := a.CreateModel(lora(session, 0))
			run := result[CreateModelResult](t, a, made, err).ModelID
			release := hold(t, a)
			send := func(seq int64) (Ticket, error) {
				return a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: seq, Batch: lesson()})
			}
			var accepted []Ticket
			var full error
			for seq := int64(1); seq < 100 && full == nil; seq++ {
				ticket, err := send(seq)
				if full = err; err == nil {
					accepted = append(accepted, ticket)
				}
			}
			if n := len(accepted); n < 2 || n > 10 {
				t.Fatalf("%d requests were accepted", n)
			}
			refused(t, full, CodeBusy, c.word)
			if again, err := send(2); err != nil || again.RequestID != accepted[1].RequestID {
				t.Errorf("a repeat while the queue is full: %v, %v", again, err)
			}
			release()
			for _, ticket := range accepted {
				result[ForwardBackwardResult](t, a, ticket, nil)
			}
			ticket, err := send(int64(len(accepted) + 1)) // the number wasn't used
			result[ForwardBackwardResult](t, a, ticket, err)
		})
	}
}
