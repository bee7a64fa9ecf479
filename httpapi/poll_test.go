package httpapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smolgym/appliance"
	"smolgym/httpapi/wire"
)

// client is one of a server over real connections.
type client struct {
	*rig
	url string
}

func (r *rig) connect(t *testing.T) *client {
	t.Helper()
	srv := httptest.NewServer(r.h)
	t.Cleanup(srv.Close)
	return &client{r, srv.URL}
}

func (c *client) post(ctx context.Context, path string, body, into any) (int, error) {
	raw, err := json.Marshal(body)
	if err != nil {
		return 0, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", c.url+"/api/v1/"+path, strings.NewReader(string(raw)))
	if err != nil {
		return 0, err
	}
	req.Header.Set("X-API-Key", "tml-test")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	if into == nil {
		return resp.StatusCode, nil
	}
	return resp.StatusCode, json.NewDecoder(resp.Body).Decode(into)
}

func (r *rig) baseSampler(session string, n int) string {
	r.t.Helper()
	var made wire.CreateSamplingSessionResponse
	r.must("POST", "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": n, "base_model": "tiny"}, &made)
	return made.SamplingSessionID
}

func asample(sampler string, seq int64, tokens int) object {
	return object{"sampling_session_id": sampler, "seq_id": seq, "prompt": object{"chunks": []object{{"type": "encoded_text", "tokens": []int{1 + int(seq)%50}}}},
		"sampling_params": object{"max_tokens": tokens, "seed": seq, "stop": []string{}}}
}

// beat sends heartbeats until done is closed and returns how long each took.
func (c *client) beat(ctx context.Context, session string, done <-chan struct{}) (took []time.Duration) {
	for {
		select {
		case <-done:
			return took
		default:
		}
		began := time.Now()
		if status, err := c.post(ctx, "session_heartbeat", object{"session_id": session}, nil); err != nil || status != 200 {
			c.t.Errorf("heartbeat: %d, %v", status, err)
		}
		took = append(took, time.Since(began))
	}
}

// FR-29: 2,000 open requests over one poll: none is lost, heartbeats are answered
// in time, and a poll with nothing to tell is held.
func TestTwoThousandOpen(t *testing.T) {
	r := newRig(t, Options{Hold: 2 * time.Second})
	r.upload("tiny")
	session := r.session()
	sampler := r.baseSampler(session, 0)
	c := r.connect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const requests = 2000
	ids := make([]string, requests)
	var posting sync.WaitGroup
	for worker := range 16 {
		posting.Go(func() {
			for i := worker; i < requests; i += 16 {
				var f wire.FutureResponse
				if status, err := c.post(ctx, "asample", asample(sampler, int64(i), 4), &f); err != nil || status != 200 {
					t.Errorf("request %d: %d, %v", i, status, err)
				}
				ids[i] = f.RequestID
			}
		})
	}
	done, beats := make(chan struct{}), make(chan []time.Duration)
	go func() { beats <- c.beat(ctx, session, done) }()
	heard, polls, cursor := map[string]bool{}, 0, int64(0)
	var retrieved []string
	for len(heard) < requests {
		var ans wire.RetrieveFuturesResponse
		status, err := c.post(ctx, "retrieve_futures", object{"target": object{"type": "sampling_session", "sampling_session_id": sampler, "cloned_sampler_id": 0}, "prev_cursor": cursor, "retrieved_request_ids": retrieved}, &ans)
		if err != nil || status != 200 {
			t.Fatalf("poll with %d of %d heard of: %d, %v", len(heard), requests, status, err)
		}
		polls++
		cursor, retrieved = ans.Cursor, nil
		for _, d := range ans.Completions {
			if heard[d.RequestID] || d.State != "finished" || d.ResponsePayloadUncompressedSize == nil {
				t.Errorf("completion %+v, heard of %t", d, heard[d.RequestID])
			}
			heard[d.RequestID] = true
			res, err := wire.DecodeSampleResponse(r.poll(d.RequestID).Body.Bytes())
			if err != nil || len(res.Sequences) != 1 || len(res.Sequences[0].Tokens) != 4 {
				t.Errorf("%s: %+v, %v", d.RequestID, res, err)
			}
			retrieved = append(retrieved, d.RequestID)
		}
	}
	close(done)
	took := <-beats
	posting.Wait()
	for i, id := range ids {
		if !heard[id] {
			t.Errorf("request %d, %s, was never told of", i, id)
		}
	}
	slices.Sort(took)
	if p95 := took[len(took)*95/100]; p95 > 250*time.Millisecond {
		t.Errorf("p95 of %d heartbeats is %v", len(took), p95)
	}
	began := time.Now()
	var ans wire.RetrieveFuturesResponse
	if _, err := c.post(ctx, "retrieve_futures", object{"target": object{"sampling_session_id": sampler}, "prev_cursor": cursor}, &ans); err != nil || len(ans.Completions) != 0 || time.Since(began) < 2*time.Second {
		t.Errorf("an idle poll came back after %v with %v, %v", time.Since(began), ans, err)
	}
	began = time.Now()
	if _, err := c.post(ctx, "retrieve_futures", object{"target": object{"sampling_session_id": sampler}, "prev_cursor": cursor, "timeout": 0, "retrieved_request_ids": retrieved}, &ans); err != nil || ans.Cursor != cursor || time.Since(began) > time.Second {
		t.Errorf("a poll that only acknowledges: %v after %v, %v", ans, time.Since(began), err)
	}
	for _, id := range retrieved {
		if w := r.do("POST", "/api/v1/retrieve_future", object{"request_id": id}); w.Code != http.StatusGone {
			t.Errorf("an acknowledged result is still there: %d", w.Code)
		}
	}
	t.Logf("%d polls, %d heartbeats with p95 %v", polls, len(took), took[len(took)*95/100])
}

// The forms of join, cancel and backpressure.
func TestSamplingRoutes(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session := r.session()
	sampler := r.baseSampler(session, 0)
	for want := range 2 {
		var joined wire.JoinSamplingSessionResponse
		r.must("POST", "/api/v1/join_sampling_session", object{"sampling_session_id": sampler, "type": "join_sampling_session"}, &joined)
		if joined.ClientCounter != int64(want+1) {
			t.Errorf("counter %d, want %d", joined.ClientCounter, want+1)
		}
	}
	for _, id := range []string{"nobody", sampler + ":0"} {
		r.must("POST", "/api/v1/cancel_future", object{"request_id": id}, nil)
	}
	var f wire.FutureResponse
	r.must("POST", "/api/v1/asample", asample(sampler, 2e9, 8), &f)
	r.poll(f.RequestID)
	r.must("POST", "/api/v1/cancel_future", object{"request_id": f.RequestID}, nil)
	if w := r.poll(f.RequestID); w.Code != 200 || w.Header().Get("Content-Type") != protobuf {
		t.Errorf("a result after cancel: %d %s", w.Code, w.Body)
	}
	var ans wire.RetrieveFuturesResponse
	r.must("POST", "/api/v1/retrieve_futures", object{"target": object{"sampling_session_id": sampler, "cloned_sampler_id": 2}, "prev_cursor": 0, "timeout": 0.0}, &ans)
	if len(ans.Completions) != 1 || ans.Completions[0].RequestID != f.RequestID {
		t.Errorf("clone 2: %+v", ans)
	}
	for name, c := range map[string]struct {
		body   object
		status int
	}{
		"nobody":       {object{"target": object{"sampling_session_id": "nobody"}}, 404},
		"no target":    {object{"prev_cursor": 0}, 400},
		"other target": {object{"target": object{"type": "run", "sampling_session_id": sampler}}, 400},
		"clone":        {object{"target": object{"sampling_session_id": sampler, "cloned_sampler_id": -1}}, 400},
		"cursor":       {object{"target": object{"sampling_session_id": sampler}, "prev_cursor": -1}, 400},
	} {
		if w := r.do("POST", "/api/v1/retrieve_futures", c.body); w.Code != c.status {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
	}
	for _, id := range []string{"x:0", "no:body:0"} {
		if w := r.do("POST", "/api/v1/retrieve_future", object{"request_id": id}); w.Code != 404 {
			t.Errorf("result %q: %d", id, w.Code)
		}
	}
	// A number that this or an earlier process may have accepted.
	if w := r.do("POST", "/api/v1/retrieve_future", object{"request_id": sampler + ":17"}); w.Code != 410 {
		t.Errorf("a lost sample: %d %s", w.Code, w.Body)
	}
}

// With parts in any order, a request that is refused at once keeps no other waiting.
func TestRefusedNumbers(t *testing.T) {
	r := newRigWith(t, Options{}, appliance.Options{ParallelChunks: true, ParkFor: time.Hour})
	r.upload("tiny")
	var config wire.ConfigResponse
	r.must("POST", "/api/v1/client/config", object{}, &config)
	if config.ParallelFwdbwdChunks == nil || !*config.ParallelFwdbwdChunks {
		t.Errorf("config %+v", config)
	}
	run := r.lora(r.session(), 0)
	var f wire.FutureResponse
	r.must("POST", "/api/v1/forward_backward", batch(t, run, 3, nil), &f, asProtobuf...)
	for seq, body := range map[int]object{1: {"path": "a/b"}, 2: {"path": "x", "ttl_seconds": "long"}} {
		body["model_id"], body["seq_id"] = run, seq
		if w := r.do("POST", "/api/v1/save_weights", body); w.Code == http.StatusOK {
			var refused wire.FutureResponse
			if err := json.Unmarshal(w.Body.Bytes(), &refused); err != nil || !strings.Contains(r.poll(refused.RequestID).Body.String(), "error") {
				t.Errorf("%v went well: %s", body, w.Body)
			}
		} else if w.Code != http.StatusBadRequest {
			t.Errorf("%v: %d %s", body, w.Code, w.Body)
		}
	}
	if w := r.poll(f.RequestID); w.Header().Get("Content-Type") != protobuf {
		t.Errorf("after the refused ones: %d %s", w.Code, w.Body)
	}
}

// Every sampling option in the wire's forms.
func TestSamplingOptions(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	sampler := r.baseSampler(r.session(), 0)
	tokens := []int{5, 9, 13, 17, 21}
	ask := func(seq int, more object) *wire.SampleResponse {
		t.Helper()
		body := object{"sampling_session_id": sampler, "seq_id": seq, "prompt": object{"chunks": []object{{"type": "encoded_text", "tokens": tokens[:2]}, {"type": "encoded_text", "tokens": tokens[2:]}}},
			"sampling_params": object{"max_tokens": 1, "seed": 1, "stop": []string{}}, "prompt_logprobs": true}
		for k, v := range more {
			body[k] = v
		}
		res, err := wire.DecodeSampleResponse(r.future("asample", body).Body.Bytes())
		if err != nil {
			t.Fatalf("%v: %v", more, err)
		}
		return res
	}
	all := ask(0, object{"topk_prompt_logprobs": 3, "topk_sample_logprobs": 2, "prompt_alt_tokens_k": 2,
		"target_prompt_logprobs": object{"data": []int{9, -1, 13, -1, 17, -1, 21, 3}, "dtype": "int64", "shape": []int{4, 2}}})
	dense := all.TargetPromptLogprobs
	if dense == nil || !slices.Equal(dense.Shape, []int{4, 2}) || dense.CSR != nil {
		t.Fatalf("targets %+v", dense)
	}
	for i := range 4 {
		if dense.F32[2*i] != all.PromptLogprobs[i+1] || (dense.F32[2*i+1] == 0) != (i < 3) {
			t.Errorf("targets %v, prompt %v", dense.F32, all.PromptLogprobs)
		}
	}
	alt := all.PromptAltTokens
	if alt == nil || !slices.Equal(alt.Tokens.Shape, []int{4, 2}) || !slices.Equal(alt.Logprobs.Shape, []int{4, 2}) || alt.Tokens.DType != wire.Int64 {
		t.Errorf("draws %+v", alt)
	}
	if top := all.TopkPromptLogprobs; top.Length != 5 || top.K != 3 || top.Logprobs[0] != wire.MissingLogprob || all.Sequences[0].TopkLogprobs.K != 2 {
		t.Errorf("tables %+v, %+v", top, all.Sequences[0].TopkLogprobs)
	}
	sparse := ask(1, object{"target_prompt_logprobs": object{"data": []int{17, 3, 21}, "dtype": "int64", "shape": []int{4, 100000}, "sparse_crow_indices": []int{0, 0, 0, 2, 3}, "sparse_col_indices": []int{4, 99999, 0}}}).TargetPromptLogprobs
	if sparse == nil || sparse.CSR == nil || !slices.Equal(sparse.Shape, []int{4, 100000}) || len(sparse.F32) != 3 ||
		sparse.F32[0] != all.PromptLogprobs[3] || sparse.F32[2] != all.PromptLogprobs[4] || !slices.Equal(sparse.CSR.Col, []int64{4, 99999, 0}) {
		t.Errorf("sparse targets %+v", sparse)
	}
	last := ask(2, object{"prompt_logprobs_last_n": 2})
	for i, v := range last.PromptLogprobs {
		if (v == v) != (i >= 3) || v == v && v != all.PromptLogprobs[i] {
			t.Errorf("last two: %v of %v", last.PromptLogprobs, all.PromptLogprobs)
		}
	}
	if none := ask(3, nil); none.TargetPromptLogprobs != nil || none.PromptAltTokens != nil || none.TopkPromptLogprobs != nil {
		t.Errorf("not asked for: %+v", none)
	}
	for i, c := range []string{
		`{"data":[1],"dtype":"int64","shape":[1,1]}`, `{"data":[1,2,3,4],"dtype":"float32","shape":[4,1]}`,
		`{"data":[1],"dtype":"int64","shape":[4,2],"sparse_crow_indices":[0,0,0,0,1],"sparse_col_indices":[2]}`,
	} {
		w := r.do("POST", "/api/v1/asample", fmt.Sprintf(`{"sampling_session_id":%q,"seq_id":%d,"prompt":{"chunks":[{"type":"encoded_text","tokens":[1,2,3,4,5]}]},"sampling_params":{},"target_prompt_logprobs":%s}`, sampler, 10+i, c))
		if w.Code != 400 || !strings.Contains(w.Body.String(), "target_prompt_logprobs") {
			t.Errorf("%s: %d %s", c, w.Code, w.Body)
		}
	}
}
