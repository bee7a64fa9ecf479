package arch

import (
	"testing"

	"smolgym/model/hf"
	"smolgym/model/ir"
)

// Any configuration that parses is refused or gives graphs that verify and a
// bounded context; nothing panics.
func FuzzConfig(f *testing.F) {
	for _, extra := range []string{
		`"rope_theta":1e4`,
		`"rope_scaling":{"type":"yarn","factor":4,"original_max_position_embeddings":16},"attention_bias":true,"mlp_bias":true`,
		`"rope_scaling":{"rope_type":"llama3","factor":8,"low_freq_factor":1,"high_freq_factor":4,"original_max_position_embeddings":32}`,
		`"rope_scaling":{"type":"linear","factor":1e-6},"tie_word_embeddings":true`,
		`"rope_scaling":{"type":"su","short_factor":[1,2],"long_factor":[3,4],"original_max_position_embeddings":16},"max_position_embeddings":64`,
		`"partial_rotary_factor":0.5,"sliding_window":4,"layer_types":["linear_attention","full_attention"],"linear_num_key_heads":2,"linear_num_value_heads":4`,
		`"layer_types":["sliding_attention","full_attention"],"rope_local_base_freq":100,"query_pre_attn_scalar":3,"final_logit_softcapping":2`,
		`"num_experts":3,"num_experts_per_tok":2,"moe_intermediate_size":4,"mlp_only_layers":[1],"norm_topk_prob":true`,
	} {
		for _, family := range Families() {
			f.Add([]byte(`{"model_type":"` + family + `","vocab_size":8,"hidden_size":8,"intermediate_size":16,"num_hidden_layers":2,"num_attention_heads":2,` + extra + `}`))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c, err := hf.ParseConfig(text)
		if err != nil || c.Layers > 4 {
			return
		}
		ck := &hf.Checkpoint{Config: *c}
		gaps := Check(ck)
		if len(gaps) == 0 {
			t.Fatal("a checkpoint without tensors has no gaps")
		}
		for _, g := range gaps {
			if g.Kind != GapMissing {
				return
			}
		}
		for _, mode := range []Mode{Train, Decode} {
			b, err := families[c.ModelType].build(ck, mode)
			if err != nil {
				t.Fatal(err)
			}
			if err := ir.Verify(b.g); err != nil {
				t.Fatal(err)
			}
			if size := b.context * b.rotary / 2; b.context < 1 || size > maxRopeSize {
				t.Fatalf("%d positions of heads of %d", b.context, c.HeadDim)
			}
			if b.f.noRope {
				continue
			}
			for i, v := range first(frequencies(b.f.rope(c), b.rotary, b.context)) {
				if v != v {
					t.Fatalf("frequency %d of %+v is not a number", i, c.Rope)
				}
			}
		}
	})
}

func first[T, U any](v T, _ U) T { return v }
