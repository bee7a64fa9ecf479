package arch_test

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/hf"
	"smolgym/model/ir"
	"smolgym/model/safetensors"
)

// oddFile writes tensors as no library of ours would: in the order given, backwards in the header, which is padded with
// blanks and has empty metadata.
func oddFile(t *testing.T, entries []safetensors.Entry) []byte {
	t.Helper()
	var data bytes.Buffer
	var fields []string
	for _, e := range entries {
		begin := data.Len()
		if err := e.Data(&data); err != nil {
			t.Fatal(err)
		}
		shape, err := json.Marshal(e.Shape)
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, fmt.Sprintf(`%q:{"data_offsets":[%d,%d],"shape":%s,"dtype":%q}`, e.Name, begin, data.Len(), shape, e.DType))
	}
	slices.Reverse(fields)
	header := `{"__metadata__":{},` + strings.Join(fields, ",") + "}" + strings.Repeat(" ", 100)
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data.Bytes()...)
}

// entryOf is a tensor of another type with exactly the values given, or none where that type can't hold them.
func entryOf(t *testing.T, name string, dtype safetensors.DType, shape []int64, x []float32) *safetensors.Entry {
	t.Helper()
	b, back := make([]byte, int64(len(x))*dtype.Size()), make([]float32, len(x))
	if err := errors.Join(safetensors.PutFloat32s(b, dtype, x), safetensors.Float32s(back, dtype, b)); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(x, back) {
		return nil
	}
	return &safetensors.Entry{Name: name, DType: dtype, Shape: shape, Data: func(w io.Writer) error { _, err := w.Write(b); return err }}
}

// FR-18: BF16, F16 and F32 in one file with tensors of no elements, out of order, is the model that it was: every weight
// exact, the empty tensors named as unused.
func TestFR18OddModelFile(t *testing.T) {
	dir := unpack(t, "qwen3")
	gold := openGolden(t, dir, &struct{}{})
	ck, src := describe(t, dir, "config.json")
	exact := map[string][]float32{}
	w := ck.Weights(src)
	types := map[safetensors.DType]int{}
	var entries []safetensors.Entry
	for i, name := range ck.Names {
		x := make([]float32, ck.Tensors[name].Elements())
		if err := w.Float32s(x, name); err != nil {
			t.Fatal(err)
		}
		dtype := []safetensors.DType{safetensors.F32, safetensors.F16, safetensors.BF16}[i%3]
		e := entryOf(t, name, dtype, ck.Tensors[name].Shape, x)
		if e == nil { // too small a value for F16
			dtype = safetensors.BF16
			e = entryOf(t, name, dtype, ck.Tensors[name].Shape, x)
		}
		exact[name] = x
		types[dtype]++
		entries = append(entries, *e)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if types[safetensors.F32] < 3 || types[safetensors.F16] < 3 || types[safetensors.BF16] < 3 {
		t.Fatalf("types %v: the file no longer mixes them", types)
	}
	none := func(name string, dtype safetensors.DType) safetensors.Entry {
		return *entryOf(t, name, dtype, []int64{0, 64}, nil)
	}
	empty := []string{"model.layers.0.none", "model.none"}
	entries = slices.Insert(entries, 1, none(empty[1], safetensors.F32), none(empty[0], safetensors.BF16))
	slices.Reverse(entries)
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), oddFile(t, entries), 0o644); err != nil {
		t.Fatal(err)
	}
	ck, src = describe(t, dir, "config.json")
	m, err := arch.Build(ck, arch.Train)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(m.Unused, empty) {
		t.Errorf("unused %v, want %v", m.Unused, empty)
	}
	r := newRig(t)
	r.load(m, ck, src)
	for name, x := range exact {
		if !slices.Equal(r.floats(name), x) {
			t.Errorf("%s has other values", name)
		}
	}
	dims := r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
	g := m.Graph.Clone()
	g.Output("logits", m.Logits)
	r.run(g, dims)
	within(t, "logits", r.floats("logits"), gold.floats("logits"), rtol, share)
}

// FR-18: what holds numbers and is not read is refused still, and so are types without a value.
func TestFR18RefusedByName(t *testing.T) {
	for _, c := range []struct {
		tensor hf.Tensor
		want   string
	}{
		{hf.Tensor{Name: "model.more", DType: safetensors.F32, Shape: []int64{1, 64}}, "unexpected model.more: "},
		{hf.Tensor{Name: "model.norm.weight", DType: safetensors.F8E4M3, Shape: []int64{64}}, "dtype model.norm.weight: F8_E4M3 is not supported"},
		{hf.Tensor{Name: "model.norm.weight", DType: safetensors.F32, Shape: []int64{0, 64}}, "shape model.norm.weight: is [0 64]"},
	} {
		ck := sample(t, "llama", nil)
		ck.Tensors[c.tensor.Name] = c.tensor
		ck.Names = slices.Sorted(maps.Keys(ck.Tensors))
		if gaps := arch.Check(ck); len(gaps) != 1 || !strings.HasPrefix(gaps[0].String(), c.want) {
			t.Errorf("%s: gaps %v", c.want, gaps)
		}
	}
}

// FR-20: without a flag the family's class decides, as in the reference (transformers 5.5.4, AutoConfig.for_model).
func TestFR20DefaultOfEachFamily(t *testing.T) {
	tied := []string{"gemma2", "gemma3_text", "gpt2", "smollm3"}
	for _, f := range arch.Families() {
		config := fmt.Sprintf(`{"model_type":%q,"vocab_size":16,"hidden_size":32,"intermediate_size":16,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":4,"rope_theta":1e4%s}`, f, skeletons[f])
		g, err := arch.Skeleton([]byte(config), arch.Train)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		_, own := g.ByName("lm_head.weight")
		if _, other := g.ByName("embed_out.weight"); (own || other) == slices.Contains(tied, f) {
			t.Errorf("%s: a head of its own %t, the reference's class ties %v", f, own || other, tied)
		}
	}
}

// FR-20: the six combinations in a family that ties by default, whose logits are those of the golden: a head of twice the
// embedding gives twice the logits, in every bit.
func TestFR20TiedByDefault(t *testing.T) {
	for i, c := range []struct {
		flag, head string // head: "", equal or twice
		factor     float32
		warned     bool
	}{
		{flag: "true", factor: 1}, {flag: "true", head: "equal", factor: 1}, {flag: "true", head: "twice", factor: 2, warned: true},
		{flag: "false"}, {flag: "false", head: "equal", factor: 1}, {flag: "false", head: "twice", factor: 2},
		{factor: 1}, {head: "equal", factor: 1}, {head: "twice", factor: 2, warned: true},
	} {
		t.Run(fmt.Sprint(i, c), func(t *testing.T) {
			dir := unpack(t, "smollm3_window")
			gold := openGolden(t, dir, &struct{}{})
			untie(t, dir, c.flag, c.head)
			ck, src := describe(t, dir, "config.json")
			m, err := arch.Build(ck, arch.Train)
			if c.factor == 0 {
				if !errors.Is(err, arch.ErrUnsupported) || !strings.Contains(err.Error(), "lm_head.weight") {
					t.Errorf("want a refusal, got %v", err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if warned := strings.Contains(strings.Join(m.Warnings, "\n"), "lm_head.weight differs"); warned != c.warned {
				t.Errorf("warnings %v", m.Warnings)
			}
			r := newRig(t)
			r.load(m, ck, src)
			dims := r.batch(gold.ids("input_ids"), 2, gold.floats("loss_mask"))
			g := m.Graph.Clone()
			g.Output("logits", m.Logits)
			r.run(g, dims)
			want := gold.floats("logits")
			for i := range want {
				want[i] *= c.factor
			}
			within(t, "logits", r.floats("logits"), want, rtol, share)
		})
	}
}

// untie rewrites a tied model's flag, and adds a head.
func untie(t *testing.T, dir, flag, head string) {
	t.Helper()
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(text, &fields); err != nil {
		t.Fatal(err)
	}
	delete(fields, "tie_word_embeddings")
	if flag != "" {
		fields["tie_word_embeddings"] = json.RawMessage(flag)
	}
	if text, err = json.Marshal(fields); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}
	ck, src := describe(t, dir, "config.json")
	w := ck.Weights(src)
	defer w.Close()
	var entries []safetensors.Entry
	add := func(name string, x hf.Tensor, factor float32) {
		values := make([]float32, x.Elements())
		if err := w.Float32s(values, x.Name); err != nil {
			t.Fatal(err)
		}
		for i := range values {
			values[i] *= factor
		}
		entries = append(entries, *entryOf(t, name, safetensors.BF16, x.Shape, values))
	}
	for _, name := range ck.Names {
		add(name, ck.Tensors[name], 1)
	}
	if factor := map[string]float32{"equal": 1, "twice": 2}[head]; factor > 0 {
		add("lm_head.weight", ck.Tensors["model.embed_tokens.weight"], factor)
	}
	var b bytes.Buffer
	if err := safetensors.Write(&b, entries, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "model.safetensors"), b.Bytes(), 0o644); err != nil {
		t.Fatal(err)
	}
}

// FR-21: the shapes that the golden must have to mean something, and an unknown scaling in both spellings.
func TestFR21Geometry(t *testing.T) {
	dir := unpack(t, "geometry")
	var info struct {
		Cases []struct {
			Configs []string
			Name    string
		}
	}
	gold := openGolden(t, dir, &info)
	if rows := gold.ids("rows"); len(gold.ids("input_ids")) != 256 || rows[len(rows)-1] != 255 || len(rows) < 100 {
		t.Errorf("%d positions, rows %v", len(gold.ids("input_ids")), rows)
	}
	spelled := map[string]bool{}
	for _, c := range info.Cases {
		for _, config := range c.Configs {
			ck, _ := describe(t, dir, config)
			if h := ck.Config; h.HiddenSize != 64 || h.Heads != 4 || h.HeadDim != 32 || h.KVHeads != 2 {
				t.Errorf("%s: %+v", config, h)
			}
			r := ck.Config.Rope
			want := map[string]float64{"factor8": 8, "factor32": 32}[c.Name]
			if want > 0 && (r.Type != "llama3" || r.Factor != want || r.OriginalMaxPositions != 16) {
				t.Errorf("%s: %+v", config, r)
			}
			text, err := os.ReadFile(filepath.Join(dir, config))
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range []string{"rope_type", "type"} {
				if bytes.Contains(text, []byte(`"`+key+`": "llama3"`)) {
					spelled[fmt.Sprint(key, want)] = true
				}
			}
		}
	}
	if len(spelled) != 4 {
		t.Errorf("spellings and factors %v, want rope_type and type with 8 and 32 each", spelled)
	}
	for _, key := range []string{"rope_type", "type"} {
		gaps := arch.Check(sample(t, "llama", map[string]string{"rope_scaling": `{"` + key + `":"spiral","factor":8}`}))
		if len(gaps) != 1 || !strings.HasPrefix(gaps[0].String(), `config rope_parameters.rope_type: "spiral" is not supported; default, linear, `) {
			t.Errorf("%s: gaps %v", key, gaps)
		}
	}
}

// FR-21: scaling hides in short texts. The three cases of the golden differ by more than the tolerance, at the last position
// by far, so that a scaling that is not applied can't pass.
func TestFR21FactorsDiffer(t *testing.T) {
	gold := openGolden(t, unpack(t, "geometry"), &struct{}{})
	plain, one, other := gold.floats("logits.plain"), gold.floats("logits.factor8"), gold.floats("logits.factor32")
	for _, pair := range [][2][]float32{{plain, one}, {plain, other}, {one, other}} {
		apart := float32(0)
		for i := len(plain) - 64; i < len(plain); i++ {
			apart = max(apart, pair[0][i]-pair[1][i], pair[1][i]-pair[0][i])
		}
		if apart < 0.05 {
			t.Errorf("the last position's logits differ by %g", apart)
		}
	}
}

// What a warning says to write for long texts gives what the reference computes for one: equal factors of longrope, and a
// fixed base in place of dynamic scaling. The context is then the whole one; without it, it ends at the original length.
func TestStretchedRope(t *testing.T) {
	for name, c := range map[string]struct {
		context, stretched int
		change             func(t *testing.T, fields map[string]any, warning string)
	}{
		"longrope": {64, 256, func(_ *testing.T, fields map[string]any, _ string) {
			rope := fields["rope_parameters"].(map[string]any)
			rope["short_factor"] = rope["long_factor"]
		}},
		"dynamic": {32, 128, func(t *testing.T, fields map[string]any, warning string) {
			var theta float64
			var positions int
			at := max(0, strings.Index(warning, "rope_theta "))
			if _, err := fmt.Sscanf(warning[at:], "rope_theta %g, max_position_embeddings %d", &theta, &positions); err != nil {
				t.Fatalf("%q: %v", warning, err)
			}
			fields["rope_parameters"] = map[string]any{"rope_type": "default", "rope_theta": theta}
			fields["max_position_embeddings"] = positions
		}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := unpack(t, "rope_stretched")
			var info struct{ Configs map[string]map[string]any }
			gold := openGolden(t, dir, &info)
			ids, want, fields := gold.ids("input_ids"), gold.floats("logits."+name), info.Configs[name]
			configure := func() (*hf.Checkpoint, hf.Source) {
				text, err := json.Marshal(fields)
				if err == nil {
					err = os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644)
				}
				if err != nil {
					t.Fatal(err)
				}
				return describe(t, dir, "config.json")
			}
			ck, _ := configure()
			m, err := arch.Build(ck, arch.Decode)
			if err != nil {
				t.Fatal(err)
			}
			warning := strings.Join(m.Warnings, "\n")
			if m.Context != c.context || !strings.Contains(warning, fmt.Sprintf("texts of up to %d tokens", c.context)) || !strings.Contains(warning, fmt.Sprintf("for %d tokens write", c.stretched)) {
				t.Errorf("context %d, warnings %q", m.Context, m.Warnings)
			}
			c.change(t, fields, warning)
			ck, src := configure()
			if m, err = arch.Build(ck, arch.Decode); err != nil {
				t.Fatal(err)
			}
			if m.Context != c.stretched || len(m.Warnings) > 0 {
				t.Errorf("context %d, warnings %q", m.Context, m.Warnings)
			}
			r := newRig(t)
			r.load(m, ck, src)
			rows := make([]int32, len(ids))
			for i := range rows {
				rows[i] = int32(i)
			}
			pages := (len(ids) + arch.Page - 1) / arch.Page
			r.decodeInputs([][]int32{ids}, []int32{0}, [][]int32{reversed(pages)}, rows)
			r.run(m.Graph, ir.Dims{T: len(ids), S: 1, R: len(rows), P: pages, B: pages})
			within(t, "logits", r.floats("logits"), want, rtol, share)
		})
	}
}

// The rotary embedding of windowed layers caps the context too.
func TestLocalLongRope(t *testing.T) {
	rope := func(short string) map[string]string {
		return map[string]string{"rope_local_base_freq": "", "rope_theta": "", "rope_scaling": `{"full_attention":{"rope_type":"default","rope_theta":1e6},
			"sliding_attention":{"rope_type":"longrope","rope_theta":1e4,"original_max_position_embeddings":16,"short_factor":` + short + `,"long_factor":[2,2,2,2]}}`}
	}
	for short, want := range map[string]int{"[1,1,1,1]": 16, "[2,2,2,2]": 128} {
		m, err := arch.Build(sample(t, "gemma3_scaled", rope(short)), arch.Train)
		if err != nil {
			t.Fatal(err)
		}
		if m.Context != want || (len(m.Warnings) > 0) != (want == 16) {
			t.Errorf("%s: context %d, warnings %q", short, m.Context, m.Warnings)
		}
	}
}
