package httpapi

import (
	"fmt"
	"sync"
	"testing"

	"smolgym/httpapi/wire"
)

// Many sample requests at once are all answered, share decode batches, and don't
// keep heartbeats waiting.
func TestManySamples(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session := r.session()
	var made wire.CreateSamplingSessionResponse
	r.must("POST", "/api/v1/create_sampling_session", object{"session_id": session, "sampling_session_seq_id": 0, "base_model": "tiny"}, &made)
	const requests = 300
	lost := make([]error, requests)
	var all sync.WaitGroup
	for i := range requests {
		all.Go(func() {
			lost[i] = func() error {
				var f wire.FutureResponse
				r.must("POST", "/api/v1/asample", object{"sampling_session_id": made.SamplingSessionID, "seq_id": i, "prompt": object{"chunks": []object{{"type": "encoded_text", "tokens": []int{1 + i%50}}}},
					"sampling_params": object{"max_tokens": 8, "seed": i, "stop": []string{}}}, &f)
				res, err := wire.DecodeSampleResponse(r.poll(f.RequestID).Body.Bytes())
				if err == nil && (len(res.Sequences) != 1 || len(res.Sequences[0].Tokens) != 8) {
					err = fmt.Errorf("answer %+v", res)
				}
				return err
			}()
		})
	}
	for range 50 {
		r.must("POST", "/api/v1/session_heartbeat", object{"session_id": session}, nil)
	}
	all.Wait()
	for i, err := range lost {
		if err != nil {
			t.Errorf("request %d: %v", i, err)
		}
	}
	var stats Stats
	r.must("GET", "/smolgym/v1/stats", nil, &stats)
	if stats.MaxDecodeBatch < 2 || stats.SampledTokens != 8*requests {
		t.Errorf("stats %+v", stats)
	}
}
