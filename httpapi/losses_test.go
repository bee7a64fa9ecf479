package httpapi

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"

	"smolgym/httpapi/wire"
	"smolgym/model/safetensors"
)

// policy turns a batch into one for a policy loss, with log-probabilities that make
// ratios on both sides of the clips.
func policy(loss string, change func(i int, d *wire.Datum)) func(*wire.ForwardBackwardRequest) {
	return func(req *wire.ForwardBackwardRequest) {
		req.LossFn = loss
		for i := range req.Data {
			d := &req.Data[i]
			delete(d.Inputs, "weights")
			old, adv := make([]float32, len(d.Tokens)), make([]float32, len(d.Tokens))
			for k := range old {
				old[k], adv[k] = -4+0.4*float32(k%3-1), float32(k%2*2-1)*(1+0.1*float32(k))
			}
			d.Inputs["logprobs"], d.Inputs["advantages"] = wire.FloatTensor(old), wire.FloatTensor(adv)
			if change != nil {
				change(i, d)
			}
		}
	}
}

// constant is a tensor of one value for each token.
func constant(d *wire.Datum, v float32) wire.Tensor {
	return wire.FloatTensor(slices.Repeat([]float32{v}, len(d.Tokens)))
}

// gspo takes what its documentation says, per-token clips are those of the
// configuration when they are constant, and what isn't served is refused by name.
func TestLosses(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	run := r.lora(r.session(), 0)
	seq := int64(0)
	send := func(change func(*wire.ForwardBackwardRequest)) []byte {
		t.Helper()
		seq++
		return r.future("forward_backward", batch(t, run, seq, change), asProtobuf...).Body.Bytes()
	}
	value := func(change func(*wire.ForwardBackwardRequest)) (float64, *wire.ForwardBackwardOutput) {
		t.Helper()
		raw := send(change)
		out, err := wire.DecodeForwardBackwardOutput(raw)
		if err != nil {
			t.Fatalf("%v: %s", err, raw)
		}
		return out.Metrics["loss:sum"], out
	}
	configured := func(loss string, low, high float64, change func(int, *wire.Datum)) float64 {
		v, _ := value(func(req *wire.ForwardBackwardRequest) {
			policy(loss, change)(req)
			req.Config = map[string]wire.ConfigValue{"clip_low_threshold": {Number: low}, "clip_high_threshold": {Number: high}}
		})
		return v
	}
	for _, loss := range []string{"ppo", "cispo", "gspo"} {
		mask := func(_ int, d *wire.Datum) {
			if loss == "gspo" {
				d.Inputs["sequence_ratio_mask"] = constant(d, 1)
			}
		}
		want := configured(loss, 0.9, 1.1, mask)
		got, _ := value(policy(loss, func(i int, d *wire.Datum) {
			mask(i, d)
			d.Inputs["clip_low_threshold"], d.Inputs["clip_high_threshold"] = constant(d, 0.9), constant(d, 1.1)
		}))
		if got != want {
			t.Errorf("%s: clips per token give %v, by configuration %v", loss, got, want)
		}
		if wide := configured(loss, 0, 100, mask); wide == want {
			t.Errorf("%s: the clips have no effect: the comparison is blind", loss)
		}
	}

	// gspo by hand: one ratio a sequence over the masked tokens.
	got, out := value(func(req *wire.ForwardBackwardRequest) {
		policy("gspo", func(_ int, d *wire.Datum) {
			d.Inputs["sequence_ratio_mask"] = constant(d, 1)
			d.Inputs["sequence_ratio_mask"].F32[0] = 0
		})(req)
		req.Config = map[string]wire.ConfigValue{"clip_low_threshold": {Number: 0.9}, "clip_high_threshold": {Number: 1.1}}
	})
	want := 0.0
	for _, o := range out.Outputs {
		p := o["logprobs"].F32
		mean := 0.0
		for k := 1; k < len(p); k++ {
			mean += (float64(p[k]) - (-4 + 0.4*float64(k%3-1))) / float64(len(p)-1)
		}
		s := math.Exp(mean)
		for k := range p {
			adv := float64(k%2*2-1) * (1 + 0.1*float64(k))
			want -= min(s*adv, min(max(s, 0.9), 1.1)*adv)
		}
	}
	if math.Abs(got-want) > 1e-4*math.Abs(want) {
		t.Errorf("gspo gives %v, by hand %v", got, want)
	}

	// A datum whose one chunk is of the kind of that field.
	chunk := func(field byte) []byte {
		seq++
		return append(batch(t, run, seq, nil), 0x1a, 4, 0x0a, 2, field<<3|2, 0)
	}
	seq++
	stable := batch(t, run, seq, policy("stable_reinforce", nil))
	for _, c := range []struct {
		name string
		raw  []byte
	}{{"stable_reinforce", stable}, {"image", chunk(2)}, {"dmel", chunk(3)}} {
		name, raw := c.name, c.raw
		text := r.future("forward_backward", raw, asProtobuf...).Body.String()
		if !strings.Contains(text, name) || !strings.Contains(text, `"category":"user"`) {
			t.Errorf("%s: %s", name, text)
		}
	}
}

// A run of every parameter is exported as a whole model.
func TestExportFull(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	session := r.session()
	var m wire.CreateModelResponse
	r.want("create_model", object{"session_id": session, "model_seq_id": 0, "base_model": "tiny", "type": "create_model"}, &m)
	r.future("forward_backward", batch(t, m.ModelID, 1, nil), asProtobuf...)
	var opt wire.OptimStepResponse
	r.want("optim_step", object{"model_id": m.ModelID, "seq_id": 2, "adam_params": object{"learning_rate": 0.01}}, &opt)
	var saved wire.SaveWeightsExternalResponse
	r.want("save_weights_external", object{"model_id": m.ModelID, "path": "all", "seq_id": 3}, &saved)
	var urls wire.ExternalWeightsURLsResponse
	r.must("GET", "/api/v1/training_runs/"+m.ModelID+"/checkpoints/external_weights/all/external_weights_urls", nil, &urls)
	base := tinyModel(t)
	config := r.plain("GET", urls.URLs["config.json"]).Body.Bytes()
	if !bytes.Equal(config, base["config.json"]) {
		t.Errorf("config.json is another: %s", config)
	}
	raw := r.plain("GET", urls.URLs["model.safetensors"]).Body.Bytes()
	got, err := safetensors.Parse(bytes.NewReader(raw), int64(len(raw)))
	if err != nil {
		t.Fatal(err)
	}
	was, err := safetensors.Parse(bytes.NewReader(base["model.safetensors"]), int64(len(base["model.safetensors"])))
	if err != nil {
		t.Fatal(err)
	}
	changed := 0
	for _, x := range was.Tensors() {
		y, ok := got.Tensor(x.Name)
		if !ok || !slices.Equal(y.Shape, x.Shape) || y.DType != x.DType {
			t.Fatalf("tensor %s: %+v, was %+v", x.Name, y, x)
		}
		before, after := make([]byte, x.Bytes), make([]byte, x.Bytes)
		if err := was.ReadInto(before, x.Name); err != nil {
			t.Fatal(err)
		}
		if err := got.ReadInto(after, x.Name); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(before, after) {
			changed++
		}
	}
	if changed < len(was.Tensors())/2 {
		t.Errorf("%d of %d tensors changed", changed, len(was.Tensors()))
	}
	// It goes back in as a model of its own.
	files := map[string][]byte{"config.json": config, "model.safetensors": raw}
	var u Upload
	r.must("POST", "/smolgym/v1/uploads", announce("tuned", files), &u)
	for _, f := range u.Files {
		if !f.Done {
			r.must("PUT", "/smolgym/v1/uploads/"+u.ID+"/files/"+f.Path+"?offset=0", files[f.Path], nil)
		}
	}
	var model Model
	r.must("POST", "/smolgym/v1/uploads/"+u.ID+"/commit", nil, &model)
	if model.Name != "local/tuned" {
		t.Errorf("model %+v", model)
	}
}
