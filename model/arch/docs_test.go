package arch_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/ir"
	"smolgym/model/lora"
)

// skeletons adds to a family's smallest configuration what the page is to show.
var skeletons = map[string]string{
	"gemma2": `,"head_dim":8`, "gemma3_text": `,"head_dim":8`, "mixtral": `,"num_local_experts":4`, "qwen3": `,"head_dim":8`,
	"qwen3_moe": `,"num_experts":4,"num_experts_per_tok":2`, "qwen3_next": `,"head_dim":8,"num_experts":4,"num_experts_per_tok":2`,
	"qwen3_5_moe_text": `,"head_dim":8,"num_experts":4,"num_experts_per_tok":2`, "qwen3_5_text": `,"head_dim":8`,
	"granite": `,"embedding_multiplier":2,"attention_multiplier":0.5,"residual_multiplier":0.5,"logits_scaling":4`,
}

// goldensOf names the goldens of a family; the variants of a family begin with its name but for these.
var goldensOf = map[string][]string{"llama": {"llama", "llama3"}, "qwen3_5_moe_text": {"qwen3_5_moe"}, "gemma3_text": {"gemma3"}}

// docs/families.md is what the code says: -update rewrites it.
func TestFamiliesPage(t *testing.T) {
	var b bytes.Buffer
	b.WriteString("# Model families\n\nGenerated from the code by `go test ./model/arch -run FamiliesPage -update`; the test holds the page against it.\n\n" +
		"| family | class | features | goldens |\n| --- | --- | --- | --- |\n")
	claimed := map[string]string{}
	for _, f := range arch.Families() {
		config := fmt.Sprintf(`{"model_type":%q,"vocab_size":16,"hidden_size":32,"intermediate_size":16,"num_hidden_layers":12,"num_attention_heads":4,"num_key_value_heads":4,"rope_theta":1e4%s}`, f, skeletons[f])
		train, err := arch.Skeleton([]byte(config), arch.Train)
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		head, wrapper := arch.Class(f)
		if wrapper != "" {
			head += ", inside " + wrapper
		}
		goldens := goldensFor(f)
		for _, g := range goldens {
			if other, twice := claimed[g]; twice {
				t.Errorf("golden %s is of %s and %s", g, other, f)
			}
			claimed[g] = f
		}
		if len(goldens) == 0 {
			t.Errorf("%s has no golden", f)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f, head, strings.Join(features(t, f, train), "; "), strings.Join(goldens, ", "))
	}
	for _, g := range imports {
		if claimed[g] == "" {
			t.Errorf("golden %s is of no family", g)
		}
	}
	fmt.Fprintf(&b, "\nRotary scalings, in every family that has a rotary embedding: %s. In the reference two of them go by the length of the whole text: longrope takes other factors, and dynamic another base, at every position once a text is longer than the original length. A token's log-probability could not be the same sampled, scored and trained; so the context of such a model ends at that length, and `model check` says what to write in config.json for more: longrope with its long factors as short ones too has one table for every length and the whole context, as other servers have it that are started for long texts; a fixed base does the same for dynamic. Both are held against the reference on long texts (rope_stretched).\n", strings.Join(arch.RopeTypes(), ", "))
	fmt.Fprintf(&b, `
Each golden is compared in both spellings of its configuration, in float32: logits, log-probabilities, the gradient of
every parameter, adapters' gradients and three steps of AdamW on them, three steps on all parameters where the golden
has them, and 16 greedy tokens with a cache and without, whose logits are the same bits either way.
Tolerance: rtol %g with an atol of %g of the tensor's largest value; token ids exactly. Wider by a factor, for adapters'
gradients and steps, where the golden's own rounding is as large as that: %s.

In every family a token's log-probability has the same bits whether it was sampled (from pieces of any size, in any batch)
or trained on, with adapters on every module, on the reference and on the CPU device.
`, rtol, share, factors())
	path := filepath.Join("..", "..", "docs", "families.md")
	if *rewrite {
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(have, b.Bytes()) {
		t.Errorf("docs/families.md is not what the code says (%v); run go test ./model/arch -run FamiliesPage -update", err)
	}
}

func factors() string {
	var list []string
	for g, f := range slacks {
		list = append(list, fmt.Sprintf("%s (%g)", g, f))
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

// goldensFor are the goldens whose names begin with the family's and with no longer family's.
func goldensFor(family string) []string {
	of := func(f string) []string {
		if names := goldensOf[f]; names != nil {
			return names
		}
		return []string{f}
	}
	var list []string
	for _, g := range imports {
		best, owner := 0, ""
		for _, f := range arch.Families() {
			for _, begin := range of(f) {
				if (g == begin || strings.HasPrefix(g, begin+"_")) && len(begin) > best {
					best, owner = len(begin), f
				}
			}
		}
		if owner == family {
			list = append(list, g)
		}
	}
	slices.Sort(list)
	return list
}

// features reads a graph.
func features(t *testing.T, family string, g *ir.Graph) []string {
	t.Helper()
	count := map[ir.Op]int{}
	layers := map[ir.Op]map[int]bool{}
	windows, caps, units, partial, headNorms, wideNorms := 0, false, false, "", false, false
	tables := map[ir.ID]bool{}
	for _, n := range g.Nodes {
		count[n.Op]++
		if layers[n.Op] == nil {
			layers[n.Op] = map[int]bool{}
		}
		layers[n.Op][n.Attr.Layer] = true
		switch n.Op {
		case ir.OpAttention:
			if n.Attr.Window > 0 {
				windows++
			}
			caps = caps || n.Attr.Softcap > 0
		case ir.OpRope:
			tables[n.In[2]] = true
			if n.Attr.Rotary < n.Attr.HeadDim {
				partial = fmt.Sprintf("%d of %d elements of a head rotate", n.Attr.Rotary, n.Attr.HeadDim)
			}
		case ir.OpRMSNorm:
			units = units || n.Attr.Unit
			headNorms = headNorms || strings.HasSuffix(n.Attr.Module, "q_norm") && n.Attr.Heads > 1
			wideNorms = wideNorms || strings.HasSuffix(n.Attr.Module, "q_norm") && n.Attr.Heads == 1
		}
	}
	var f []string
	say := func(ok bool, format string, args ...any) {
		if ok {
			f = append(f, fmt.Sprintf(format, args...))
		}
	}
	_, hasHead := g.ByName("lm_head.weight")
	_, hasOut := g.ByName("embed_out.weight")
	of := len(layers[ir.OpAttention]) + len(layers[ir.OpDelta])
	say(count[ir.OpCenter] > 0, "layer norms with bias")
	say(units, "norms' weights stored less one")
	say(arch.Learned(family), "learned positions")
	say(partial != "", "%s", partial)
	say(len(tables) > 1, "a rotary embedding of their own for windowed layers")
	say(count[ir.OpRope] > 0 && len(layers[ir.OpRope]) < len(layers[ir.OpAttention]), "%d of %d layers without rotary embedding", of-len(layers[ir.OpRope]), of)
	say(windows > 0, "windows in %d of %d layers", windows, of)
	say(headNorms, "norms over query and key heads")
	say(wideNorms, "norms over all query and all key heads")
	say(caps, "soft caps")
	say(count[ir.OpLinearT] > 0, "weights stored transposed")
	say(count[ir.OpScaleAdd] > 0, "factors on embedding, scores, residual, logits")
	say(count[ir.OpDelta] > 0, "linear attention (gated delta rule, short convolution) in %d of %d layers", len(layers[ir.OpDelta]), of)
	say(count[ir.OpDelta] > 0, "gated attention")
	say(count[ir.OpGELU] > 0, "GELU")
	say(count[ir.OpGELUTanh] > 0, "GELU by tanh")
	say(count[ir.OpSiLUMul] > 0, "SiLU gates")
	say(count[ir.OpTopK] > 0, "experts")
	say(strings.Contains(fmt.Sprint(modules(t, g)), "shared_expert"), "a shared expert")
	say(!hasHead && !hasOut, "tied head unless told otherwise")
	return append(f, "adapters on "+strings.Join(modules(t, g), ", "))
}

// modules are the last parts of the names of what gets adapters.
func modules(t *testing.T, g *ir.Graph) []string {
	t.Helper()
	_, adapters, err := lora.Apply(g, lora.Config{Rank: 1, Alpha: 1, Attention: true, MLP: true, Unembed: true})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, a := range adapters {
		name := lora.Leaf(a.Module)
		if a.Experts > 0 || strings.Contains(a.Module, "shared_expert.") {
			name = a.Module[strings.Index(a.Module, ".mlp.")+len(".mlp."):]
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
