package export

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/safetensors"
)

var writeDir = flag.String("write", "", "write the exports of the cross-check and our logits into this folder, for testdata/check.py")

// trial is one export that testdata/check.py loads with the reference framework.
type trial struct {
	name string
	kind string // "adapter" or "merged"
	base memory
	out  memory
	want []float32 // our logits
	bare []float32 // those of the base model
	ids  []int32
}

// verdict is testdata/verdict.json, as check.py writes it.
type verdict struct {
	Versions map[string]string
	Cases    map[string]struct {
		OK    bool
		Files map[string]string // sha256 by path
	}
}

// readVerdict reads what a check with another framework has written into testdata.
func readVerdict(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatal(err)
	}
}

// wasJudged holds files, byte for byte, to those of a verdict: sha256 by path.
func (m memory) wasJudged(t *testing.T, name string, judged map[string]string, otherwise string) {
	t.Helper()
	for _, path := range m.Names() {
		if sum := sha256.Sum256(m[path]); judged[path] != hex.EncodeToString(sum[:]) {
			t.Errorf("%s: %s is not the file that was judged; %s", name, path, otherwise)
		}
	}
	if len(m) != len(judged) {
		t.Errorf("%s: %d files, %d were judged; %s", name, len(m), len(judged), otherwise)
	}
}

// TestCrossCheck (FR-25, FR-26) holds our exports, byte for byte, to those that the reference framework has loaded: with no key missing or
// unexpected, with our logits, and not with those of the base. To renew the verdict:
//
//	go test ./model/export -run TestCrossCheck -write DIR
//	python model/export/testdata/check.py DIR model/export/testdata/verdict.json
func TestCrossCheck(t *testing.T) {
	trials := crossChecks(t)
	if *writeDir != "" {
		for _, c := range trials {
			c.write(t, filepath.Join(*writeDir, c.name))
		}
		return
	}
	var v verdict
	readVerdict(t, "verdict.json", &v)
	if len(v.Cases) != len(trials) {
		t.Errorf("the verdict has %d cases, want %d", len(v.Cases), len(trials))
	}
	for _, c := range trials {
		seen, ok := v.Cases[c.name]
		if !ok || !seen.OK {
			t.Errorf("%s: not judged or failed", c.name)
			continue
		}
		c.out.wasJudged(t, c.name, seen.Files, "run check.py again")
	}
}

func (c trial) write(t *testing.T, dir string) {
	t.Helper()
	for sub, files := range map[string]memory{"base": c.base, "export": c.out} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, b := range files {
			if err := os.WriteFile(filepath.Join(dir, sub, name), b, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	shape := []int64{2, int64(len(c.ids) / 2), int64(len(c.want) / len(c.ids))}
	ids := make([]float32, len(c.ids))
	for i, v := range c.ids {
		ids[i] = float32(v)
	}
	var b bytes.Buffer
	entry := func(name string, shape []int64, values []float32) safetensors.Entry {
		x := tensorOf(name, shape, values)
		return safetensors.Entry{Name: name, DType: safetensors.F32, Shape: shape, Data: func(w io.Writer) error {
			v, err := x.values()
			if err != nil {
				return err
			}
			return convert(w, v, x.elements(), safetensors.F32)
		}}
	}
	err := safetensors.Write(&b, []safetensors.Entry{entry("ids", shape[:2], ids), entry("logits", shape, c.want), entry("base_logits", shape, c.bare)},
		map[string]string{"kind": c.kind})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "numbers.safetensors"), b.Bytes(), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// crossChecks makes every case: untied and tied heads, float32 and bfloat16 bases, one file and shards, adapters with and
// without the head, full update.
func crossChecks(t *testing.T) []trial {
	var trials []trial
	for _, name := range []string{"steps_llama", "steps_llama_tied", "steps_qwen3"} { // float32: three steps of training
		g := openGolden(t, name)
		g.base["generation_config.json"] = []byte("{\"eos_token_id\":  2,\n\n \"do_sample\": false}")
		ids, bare := g.ids(), logits(t, g.base, g.ids(), Weights{})
		add := func(label, kind string, base memory, p *Plan, err error, w Weights) {
			out := build(t, p, err)
			want := logits(t, base, ids, w)
			if kind == "merged" {
				if d := distance(logits(t, out, ids, Weights{}), want); d > 2e-5 {
					t.Errorf("%s/%s: merged logits are off by %g", name, label, d)
				}
			}
			trials = append(trials, trial{name + "." + label, kind, base, out, want, bare, ids})
		}
		all := Weights{Adapters: pair(t, g.tensors("lora.step3.", "base_model.model."), 8)}
		body := Weights{Adapters: slices.DeleteFunc(slices.Clone(all.Adapters), func(m Module) bool { return m.Module == "lm_head" })}
		some := Weights{Adapters: slices.DeleteFunc(slices.Clone(body.Adapters), func(m Module) bool {
			return strings.Contains(m.Module, "layers.0.") && strings.Contains(m.Module, "proj") && !strings.Contains(m.Module, "q_proj")
		})}
		full := Weights{Full: g.tensors("own.step3.", "")}
		shards := sharded(t, g.base, 3)
		for label, w := range map[string]Weights{"all": all, "body": body, "some": some} {
			p, err := Adapter(g.base, w.Adapters, AdapterOptions{BaseModel: "local/" + name})
			add(label+".adapter", "adapter", g.base, p, err, w)
			p, err = Merged(g.base, w, MergedOptions{})
			add(label+".merged", "merged", g.base, p, err, w)
		}
		p, err := Merged(shards, all, MergedOptions{})
		add("all.shards", "merged", shards, p, err, all)
		p, err = Merged(g.base, full, MergedOptions{})
		add("full.merged", "merged", g.base, p, err, full)
		p, err = Merged(shards, full, MergedOptions{})
		add("full.shards", "merged", shards, p, err, full)
	}
	for _, name := range []string{"llama_tied", "qwen3", "llama_bias_headdim"} { // bfloat16
		trials = append(trials, roundedChecks(t, name)...)
	}
	for _, name := range []string{"gemma3_scaled", "gpt2_scaled", "gpt_neox_serial", "granite_biases", "mixtral", "olmo3", "phi3_longrope", "qwen3_5_moe", "qwen3_moe_mixed", "qwen3_next_dense"} {
		trials = append(trials, familyChecks(t, name)...)
	}
	slices.SortFunc(trials, func(a, b trial) int { return strings.Compare(a.name, b.name) })
	return trials
}

// roundedChecks are those of a bfloat16 base: a merged model is compared with what its rounded weights give, and with the
// adapter itself where it is written as float32.
func roundedChecks(t *testing.T, name string) []trial {
	g := openGolden(t, name)
	ids, bare := g.ids(), logits(t, g.base, g.ids(), Weights{})
	w := Weights{Adapters: pair(t, g.tensors("lora.init.", "base_model.model."), 8)}
	exact := logits(t, g.base, ids, w)
	p, err := Adapter(g.base, w.Adapters, AdapterOptions{BaseModel: name})
	trials := []trial{{name + ".adapter", "adapter", g.base, build(t, p, err), exact, bare, ids}}
	p, err = Merged(g.base, w, MergedOptions{})
	out := build(t, p, err)
	trials = append(trials, trial{name + ".merged", "merged", g.base, out, logits(t, out, ids, Weights{}), bare, ids})
	p, err = Merged(g.base, w, MergedOptions{DType: safetensors.F32})
	out = build(t, p, err)
	trials = append(trials, trial{name + ".merged32", "merged", g.base, out, exact, bare, ids})
	uneven := unevenModules(t, w.Adapters)
	p, err = Adapter(g.base, uneven, AdapterOptions{BaseModel: name})
	out = build(t, p, err)
	im, err := ReadAdapter(out, g.base)
	if err != nil {
		t.Fatal(err)
	}
	u := im.Uniform()
	even := Weights{Adapters: pair(t, u.Tensors, u.Config.Alpha)}
	return append(trials, trial{name + ".uneven", "adapter", g.base, out, logits(t, g.base, ids, even), bare, ids})
}

// familyChecks are those of a family whose golden has no trained weights: adapters of noise on every module, head included.
func familyChecks(t *testing.T, name string) []trial {
	base := openFamily(t, filepath.Join("..", "..", "testdata", "families", name+".tar.gz"))
	b := must(openBase(base))
	ids := make([]int32, 48)
	for i := range ids {
		ids[i] = int32(i*37%101 + 3)
	}
	var w Weights
	experts := false
	for i, at := range b.modules {
		shapeA, shapeB := shapesOf(at, 4)
		w.Adapters = append(w.Adapters, Module{Module: at.Module, Rank: 4, Alpha: 8, A: noise(at.A, shapeA, 0.1, uint64(i)), B: noise(at.B, shapeB, 0.1, uint64(1000+i))})
		experts = experts || at.Experts > 0
	}
	want, bare := logits(t, base, ids, w), logits(t, base, ids, Weights{})
	p, err := Merged(base, w, MergedOptions{DType: safetensors.F32})
	trials := []trial{{name + ".merged", "merged", base, build(t, p, err), want, bare, ids}}
	if experts && name != "mixtral" && name != "qwen3_5_moe" { // PEFT can't load the others'
		return trials
	}
	p, err = Adapter(base, w.Adapters, AdapterOptions{BaseModel: name})
	trials = append(trials, trial{name + ".adapter", "adapter", base, build(t, p, err), want, bare, ids})
	if !experts {
		return trials
	}
	// Of the last layer's experts only, which go out as adapters of the parameters: another rank, another alpha.
	last := fmt.Sprintf("layers.%d.", b.ck.Config.Layers-1)
	some := slices.DeleteFunc(slices.Clone(w.Adapters), func(m Module) bool { return b.byName[m.Module].Experts > 0 && !strings.Contains(m.Module, last) })
	for i := range some {
		if m := &some[i]; b.byName[m.Module].Experts > 0 {
			at := b.byName[m.Module]
			shapeA, shapeB := shapesOf(at, 3)
			m.Rank, m.Alpha, m.A, m.B = 3, 5, noise(at.A, shapeA, 0.1, uint64(2000+i)), noise(at.B, shapeB, 0.1, uint64(3000+i))
		}
	}
	p, err = Adapter(base, some, AdapterOptions{BaseModel: name})
	return append(trials, trial{name + ".some", "adapter", base, build(t, p, err), logits(t, base, ids, Weights{Adapters: some}), bare, ids})
}

// unevenModules makes modules of different ranks and alphas: every third loses half of its rank, every fourth has another alpha.
func unevenModules(t *testing.T, modules []Module) []Module {
	list := slices.Clone(modules)
	for i := range list {
		m := &list[i]
		if i%3 == 0 {
			r := m.Rank / 2
			in, out := int(m.A.Shape[1]), int(m.B.Shape[0])
			a, b := valuesOf(t, m.A), valuesOf(t, m.B)
			var short []float32
			for o := range out {
				short = append(short, b[o*m.Rank:][:r]...)
			}
			m.A, m.B = tensorOf(m.A.Name, []int64{int64(r), int64(in)}, a[:r*in]), tensorOf(m.B.Name, []int64{int64(out), int64(r)}, short)
			m.Rank = r
		}
		if i%4 == 1 {
			m.Alpha = 16
		}
		if i%7 == 2 {
			m.Alpha = 5
		}
	}
	return list
}
