package appliance

import (
	"maps"
	"slices"
	"testing"
	"time"

	"smolgym/store"
)

// FR-14: resuming with the optimizer's state is exact, in the same process and
// after a restart, for LoRA and for full update.
func TestResume(t *testing.T) {
	for _, c := range []struct {
		name   string
		create func(string, int64) CreateModelRequest
	}{{"lora", lora}, {"full", full}} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			a, session := ready(t, Options{Data: dir})
			ticket, err := a.CreateModel(c.create(session, 0))
			run := result[CreateModelResult](t, a, ticket, err).ModelID
			for i := range int64(3) {
				step(t, a, run, 1+2*i)
			}
			ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 7, Name: "three", UserMetadata: map[string]string{"k": "v"}})
			path := result[SaveResult](t, a, ticket, err).Path
			if path != "tinker://"+run+"/weights/three" {
				t.Errorf("path %q", path)
			}
			step(t, a, run, 8)
			want := state(t, a, run, 10, "four")

			resume := func(a *Appliance, n int64) {
				t.Helper()
				ticket, err := a.LoadWeights(LoadRequest{SessionID: session, ModelSeq: n, Path: path, Optimizer: true})
				twin := result[LoadResult](t, a, ticket, err).ModelID
				if twin != RunID(session, n) {
					t.Errorf("created %q", twin)
				}
				if got := state(t, a, twin, 1, "three"); maps.Equal(got, want) {
					t.Error("the state before the step equals the one after it: the comparison is blind")
				}
				step(t, a, twin, 2)
				if got := state(t, a, twin, 4, "four"); !maps.Equal(got, want) {
					t.Errorf("run %d: the step after resuming differs", n)
				}
			}
			resume(a, 1)

			// Into a run that was trained on: gradients and moments of its own go.
			ticket, err = a.CreateModel(c.create(session, 2))
			other := result[CreateModelResult](t, a, ticket, err).ModelID
			step(t, a, other, 1)
			ticket, err = a.ForwardBackward(ForwardBackwardRequest{RunID: other, Seq: 3, Batch: lesson()})
			result[ForwardBackwardResult](t, a, ticket, err)
			ticket, err = a.LoadWeights(LoadRequest{RunID: other, Seq: 4, Path: path, Optimizer: true})
			result[LoadResult](t, a, ticket, err)
			step(t, a, other, 5)
			if got := state(t, a, other, 7, "four"); !maps.Equal(got, want) {
				t.Error("the step after loading into a run differs")
			}

			// Without the optimizer the step count starts again.
			ticket, err = a.LoadWeights(LoadRequest{SessionID: session, ModelSeq: 3, Path: path})
			fresh := result[LoadResult](t, a, ticket, err).ModelID
			step(t, a, fresh, 1)
			if cp, err := a.Checkpoint("tinker://" + fresh + "/weights/x"); err == nil {
				t.Errorf("found %v", cp)
			}
			if got := state(t, a, fresh, 3, "x"); maps.Equal(got, want) {
				t.Error("a step with fresh moments equals one with loaded moments")
			}

			shut(t, a)
			b := open(t, Options{Data: dir})
			resume(b, 4)
		})
	}
}

// What a restart keeps, and what it says about the rest.
func TestRestart(t *testing.T) {
	dir := t.TempDir()
	a, session := ready(t, Options{Data: dir})
	created, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, created, err).ModelID
	step(t, a, run, 1)
	saved, err := a.SaveWeights(SaveRequest{RunID: run, Seq: 3, Name: "one"})
	path := result[SaveResult](t, a, saved, err).Path
	ticket, err := a.SaveSamplerWeights(SaveRequest{RunID: run, Seq: 4, Name: "one"})
	samplerPath := result[SaveSamplerResult](t, a, ticket, err).Path
	named, err := a.CreateSampler(SamplerRequest{SessionID: session, Seq: 0, ModelPath: samplerPath})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err = a.Snapshot(SnapshotRequest{RunID: run, Seq: 5, SamplerSeq: 1})
	unnamed := result[SaveSamplerResult](t, a, ticket, err).SamplerID
	fb, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 6, Batch: lesson()})
	result[ForwardBackwardResult](t, a, fb, err)
	n, s := 5, uint64(3)
	ask := func(a *Appliance, sampler string, seq int64) (Ticket, error) {
		return a.Sample(SampleRequest{SamplerID: sampler, Seq: seq, Count: 1, Prompt: []int32{1, 8}, MaxTokens: &n, Seed: &s, Temperature: 1, TopP: 1, Stop: &Stop{}})
	}
	ticket, err = ask(a, named, 0)
	before := result[SampleResult](t, a, ticket, err).Sequences
	shut(t, a)

	b := open(t, Options{Data: dir})
	if err := b.Heartbeat(session); err != nil {
		t.Errorf("heartbeat after a restart: %v", err)
	}
	for _, old := range []Ticket{created, saved} {
		if ans := wait(t, b, old, nil); ans.Failure != nil {
			t.Errorf("%s after a restart: %s", ans.Kind, ans.Failure.Message)
		}
	}
	_, err = b.Retrieve(t.Context(), fb.RequestID)
	refused(t, err, CodeGone, "kept")
	again, err := b.SaveWeights(SaveRequest{RunID: run, Seq: 3, Name: "one"})
	if err != nil || again.RequestID != saved.RequestID {
		t.Errorf("repeat after a restart: %+v, %v; first %+v", again, err, saved)
	}
	ticket, err = b.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 7, Batch: lesson()})
	fails(t, b, ticket, err, "no longer in memory", path, "create_training_client_from_state_with_optimizer")
	ticket, err = ask(b, named, 1)
	if after := result[SampleResult](t, b, ticket, err).Sequences; !slices.Equal(after[0].Tokens, before[0].Tokens) || !slices.Equal(after[0].Logprobs, before[0].Logprobs) {
		t.Error("a named sampler answers differently after a restart")
	}
	ticket, err = ask(b, unnamed, 1)
	fails(t, b, ticket, err, "not saved", "restarted")
	runs, total, err := b.Runs(Page{Limit: 10})
	if err != nil || total != 1 || runs[0].ID != run || runs[0].Live || runs[0].LastWeights == nil || runs[0].LastSeq != 7 {
		t.Errorf("runs %+v, %d, %v", runs, total, err)
	}
	if list, total, err := b.CheckpointsOf(run, Page{}); err != nil || total != 2 || len(list) != 2 {
		t.Errorf("checkpoints %+v, %d, %v", list, total, err)
	}
	info, err := b.RunInfo(run)
	if err != nil || !info.IsLoRA || info.Rank != 4 {
		t.Errorf("info %+v, %v", info, err)
	}
}

func TestLoadRefusals(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 1, Name: "a"})
	path := result[SaveResult](t, a, ticket, err).Path
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 2, Name: "a"})
	fails(t, a, ticket, err, "exists", "overwrite")
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 3, Name: "a", Overwrite: true})
	result[SaveResult](t, a, ticket, err)
	ticket, err = a.SaveSamplerWeights(SaveRequest{RunID: run, Seq: 4, Name: "a"})
	sampler := result[SaveSamplerResult](t, a, ticket, err).Path

	wide := lora(session, 1)
	wide.LoRA.Rank = 8
	ticket, err = a.CreateModel(wide)
	other := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.LoadWeights(LoadRequest{RunID: other, Seq: 1, Path: path})
	fails(t, a, ticket, err, "rank 4", "rank 8")
	ticket, err = a.LoadWeights(LoadRequest{RunID: run, Seq: 5, Path: sampler, Optimizer: true})
	fails(t, a, ticket, err, "no optimizer state")
	ticket, err = a.LoadWeights(LoadRequest{RunID: run, Seq: 6, Path: sampler})
	result[LoadResult](t, a, ticket, err)
	ticket, err = a.LoadWeights(LoadRequest{RunID: run, Seq: 7, Path: "tinker://" + run + "/weights/nothing"})
	fails(t, a, ticket, err, "no checkpoint", "nothing")
	for _, bad := range []string{"", "a", "/etc/passwd", "tinker://x", "tinker://x/weights/../y", "tinker://x/other/y", "tinker://x/weights/a\x00b"} {
		_, err = a.LoadWeights(LoadRequest{RunID: run, Seq: 8, Path: bad})
		refused(t, err, CodeUser, "checkpoint path")
		_, err = a.CreateSampler(SamplerRequest{SessionID: session, Seq: 9, ModelPath: pick(bad, "x")})
		refused(t, err, CodeUser, "checkpoint path")
	}
	_, err = a.CreateSampler(SamplerRequest{SessionID: session, Seq: 9, ModelPath: "tinker://" + run + "/sampler_weights/nothing"})
	refused(t, err, CodeNotFound, "no checkpoint")
	_, err = a.CreateSampler(SamplerRequest{SessionID: session, Seq: 9, BaseModel: "absent"})
	refused(t, err, CodeNotFound, "local/absent", "smolgym model list")
	for _, bad := range []string{"", ".", "..", "a/b", "/abs", "a\x00b", string(make([]byte, 4096)), "a..b", "ü"} {
		_, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 9, Name: bad})
		refused(t, err, CodeUser, "checkpoint name")
	}
}

// FR-16: runs of clients that vanish are unloaded after the idle time; unloading
// twice is fine; a session is finished once.
func TestVanishedClients(t *testing.T) {
	c := newClock()
	a, session := ready(t, Options{Now: c.Now, SessionIdle: 5 * time.Minute})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 1, Name: "kept"})
	result[SaveResult](t, a, ticket, err)
	c.advance(4 * time.Minute)
	if err := a.Heartbeat(session); err != nil {
		t.Fatal(err)
	}
	c.advance(4 * time.Minute)
	a.sweep(t.Context())
	if st, err := a.Status(); err != nil || st.RunsLive != 1 || st.Sessions != 1 {
		t.Fatalf("status %+v, %v: swept too early", st, err)
	}
	c.advance(2 * time.Minute)
	a.sweep(t.Context())
	refused(t, a.Heartbeat(session), CodeGone, "ended")
	ticket, err = a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 2, Batch: lesson()})
	fails(t, a, ticket, err, "no longer in memory", "weights/kept")
	if err := a.eng.Do(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	if st, err := a.Status(); err != nil || st.RunsLive != 0 || st.Sessions != 0 {
		t.Errorf("status %+v, %v", st, err)
	}
	for range 2 {
		ticket, err := a.UnloadModel(run)
		result[UnloadResult](t, a, ticket, err)
	}
	if err := a.FinishSession(session, "success", ""); err != nil {
		t.Error(err)
	}
	v, err := a.Session(session)
	if err != nil || v.Finished == nil || v.Finished.Reason != "interrupted" {
		t.Errorf("session %+v, %v; the first reason should win", v, err)
	}
	refused(t, a.FinishSession("nobody", "success", ""), CodeNotFound, "nobody")
	refused(t, a.FinishSession(session, "bored", ""), CodeUser, "bored")
}

// Queued work is done before a finished session's runs are unloaded.
func TestFinishWaitsForQueue(t *testing.T) {
	a, session := ready(t, Options{})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	var queued []Ticket
	for i := range int64(5) {
		ticket, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: i + 1, Batch: lesson()})
		if err != nil {
			t.Fatal(err)
		}
		queued = append(queued, ticket)
	}
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 6, Name: "last"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.FinishSession(session, "success", ""); err != nil {
		t.Fatal(err)
	}
	for _, q := range queued {
		result[ForwardBackwardResult](t, a, q, nil)
	}
	result[SaveResult](t, a, ticket, nil)
}

func TestResultsExpire(t *testing.T) {
	c := newClock()
	a, session := ready(t, Options{Now: c.Now, SessionIdle: time.Hour})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	fb, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 1, Batch: lesson()})
	result[ForwardBackwardResult](t, a, fb, err)
	c.advance(10 * time.Minute)
	a.sweep(t.Context())
	result[ForwardBackwardResult](t, a, fb, nil)
	c.advance(10 * time.Minute)
	a.sweep(t.Context())
	_, err = a.Retrieve(t.Context(), fb.RequestID)
	refused(t, err, CodeGone)
	a.record.flush()
	result[CreateModelResult](t, a, ticket, nil) // small ones are kept in the store
	again, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: 1, Batch: lesson()})
	if err != nil || again.RequestID != fb.RequestID {
		t.Errorf("repeat of an expired request: %+v, %v", again, err)
	}
	_, err = a.Retrieve(t.Context(), "not-an-id")
	refused(t, err, CodeNotFound, "not-an-id")
}

func TestCheckpointLists(t *testing.T) {
	c := newClock()
	a, session := ready(t, Options{Now: c.Now, SessionIdle: 24 * time.Hour})
	ticket, err := a.CreateModel(lora(session, 0))
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	var paths []string
	for i, name := range []string{"a", "b", "c"} {
		ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: int64(i + 1), Name: name, TTL: time.Duration(i) * time.Hour})
		paths = append(paths, result[SaveResult](t, a, ticket, err).Path)
	}
	list, total, err := a.Checkpoints(Page{Limit: 2, Offset: 0})
	if err != nil || total != 3 || len(list) != 2 || list[0].Name != "c" || list[0].SizeBytes == 0 {
		t.Fatalf("page %+v of %d, %v", list, total, err)
	}
	c.advance(90 * time.Minute)
	if _, total, _ := a.Checkpoints(Page{}); total != 2 {
		t.Errorf("%d checkpoints after one expired", total)
	}
	if err := a.SetTTL(paths[2], 0); err != nil {
		t.Fatal(err)
	}
	c.advance(24 * time.Hour)
	a.sweep(t.Context())
	if err := a.PublishCheckpoint(paths[2], true); err != nil {
		t.Error(err)
	}
	if cp, err := a.Checkpoint(paths[2]); err != nil || !cp.Public || cp.Expires != nil {
		t.Errorf("checkpoint %+v, %v", cp, err)
	}
	for range 2 {
		if err := a.DeleteCheckpoint(paths[0]); err != nil {
			t.Error(err)
		}
	}
	refused(t, a.DeleteCheckpoint("tinker://nobody:train:0/weights/x"), CodeNotFound, "nobody")
	refused(t, a.SetTTL(paths[0], time.Hour), CodeNotFound, "no checkpoint")
	if list, _, err := a.CheckpointsOf(run, Page{}); err != nil || len(list) != 1 || list[0].Kind != store.KindWeights {
		t.Errorf("list %+v, %v", list, err)
	}
	_, _, err = a.CheckpointsOf("nobody", Page{})
	refused(t, err, CodeNotFound, "nobody")
}
