package arch_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"smolgym/model/arch"
	"smolgym/model/hf"
)

// Configurations with the fields of published files: everything in them is
// honoured, so that nothing but the tensors, which are not here, is missing.
func TestPublishedConfigs(t *testing.T) {
	const sizes = `"vocab_size":64,"hidden_size":64,"intermediate_size":96,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":4096,"initializer_range":0.02,"use_cache":true,"transformers_version":"4.44.0","torch_dtype":"bfloat16","bos_token_id":1,"eos_token_id":2,"pad_token_id":0,`
	qwen35 := sizes + `"model_type":%q,"attention_bias":false,"attention_dropout":0.0,"attn_output_gate":true,"full_attention_interval":4,"head_dim":32,"hidden_act":"silu","layer_types":["linear_attention","linear_attention","linear_attention","full_attention"],"linear_conv_kernel_dim":4,"linear_key_head_dim":16,"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_value_head_dim":16,"mamba_ssm_dtype":"float32","mtp_num_hidden_layers":1,"mtp_use_dedicated_embeddings":false,"partial_rotary_factor":0.25,"rms_norm_eps":1e-06,"tie_word_embeddings":true,"rope_parameters":{"mrope_interleaved":true,"mrope_section":[2,1,1],"rope_type":"default","rope_theta":10000000,"partial_rotary_factor":0.25}`
	for name, text := range map[string]string{
		"gemma2":      sizes + `"architectures":["Gemma2ForCausalLM"],"model_type":"gemma2","attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":50.0,"cache_implementation":"hybrid","final_logit_softcapping":30.0,"head_dim":16,"hidden_act":"gelu_pytorch_tanh","hidden_activation":"gelu_pytorch_tanh","query_pre_attn_scalar":16,"rms_norm_eps":1e-06,"rope_theta":10000.0,"sliding_window":4096`,
		"gemma3":      sizes + `"architectures":["Gemma3ForCausalLM"],"model_type":"gemma3_text","attention_bias":false,"attention_dropout":0.0,"attn_logit_softcapping":null,"cache_implementation":"hybrid","final_logit_softcapping":null,"head_dim":16,"hidden_activation":"gelu_pytorch_tanh","query_pre_attn_scalar":16,"rms_norm_eps":1e-06,"rope_local_base_freq":10000,"rope_scaling":null,"rope_theta":1000000,"sliding_window":512,"sliding_window_pattern":6`,
		"gemma3 wrap": `"architectures":["Gemma3ForConditionalGeneration"],"boi_token_index":5,"eoi_token_index":6,"eos_token_id":[1,106],"image_token_index":7,"mm_tokens_per_image":256,"model_type":"gemma3","text_config":{"hidden_size":64,"intermediate_size":96,"model_type":"gemma3_text","num_hidden_layers":4,"rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024},"vision_config":{"hidden_size":8,"model_type":"siglip_vision_model"}`,
		"olmo2":       sizes + `"architectures":["Olmo2ForCausalLM"],"model_type":"olmo2","attention_bias":false,"attention_dropout":0.0,"hidden_act":"silu","rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":500000,"tie_word_embeddings":false`,
		"olmo3":       sizes + `"architectures":["Olmo3ForCausalLM"],"model_type":"olmo3","attention_bias":false,"attention_dropout":0.0,"hidden_act":"silu","layer_types":["sliding_attention","sliding_attention","sliding_attention","full_attention"],"rms_norm_eps":1e-06,"rope_scaling":{"attention_factor":1.2079441541679836,"beta_fast":32.0,"beta_slow":1.0,"factor":8.0,"original_max_position_embeddings":512,"rope_type":"yarn"},"rope_theta":500000,"sliding_window":4096,"tie_word_embeddings":false`,
		"phi3":        sizes + `"architectures":["Phi3ForCausalLM"],"model_type":"phi3","attention_bias":false,"attention_dropout":0.0,"auto_map":{"AutoConfig":"x"},"embd_pdrop":0.0,"hidden_act":"silu","original_max_position_embeddings":4096,"resid_pdrop":0.0,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":10000.0,"sliding_window":2047,"tie_word_embeddings":false`,
		"phi4":        sizes + `"architectures":["Phi3ForCausalLM"],"model_type":"phi3","attention_bias":false,"attention_dropout":0.0,"embd_pdrop":0.0,"full_attn_mod":1,"hidden_act":"silu","interpolate_factor":1,"lm_head_bias":false,"mlp_bias":false,"original_max_position_embeddings":1024,"partial_rotary_factor":0.75,"resid_pdrop":0.0,"rms_norm_eps":1e-05,"rope_scaling":{"long_factor":[1,2,3,4,5,6],"short_factor":[1,1,1,1,1,1],"type":"longrope"},"rope_theta":10000.0,"sliding_window":262144,"tie_word_embeddings":true`,
		"granite":     sizes + `"architectures":["GraniteForCausalLM"],"model_type":"granite","attention_bias":false,"attention_dropout":0.0,"attention_multiplier":0.015625,"embedding_multiplier":12.0,"hidden_act":"silu","logits_scaling":8.0,"mlp_bias":false,"residual_multiplier":0.22,"rms_norm_eps":1e-05,"rope_scaling":null,"rope_theta":5000000.0,"tie_word_embeddings":true`,
		"gpt2":        `"activation_function":"gelu_new","architectures":["GPT2LMHeadModel"],"attn_pdrop":0.0,"bos_token_id":5,"embd_pdrop":0.0,"eos_token_id":5,"initializer_range":0.02,"layer_norm_epsilon":1e-05,"model_type":"gpt2","n_ctx":64,"n_embd":32,"n_head":4,"n_layer":2,"n_positions":64,"resid_pdrop":0.0,"summary_activation":null,"summary_first_dropout":0.1,"summary_proj_to_labels":true,"summary_type":"cls_index","summary_use_proj":true,"task_specific_params":{"text-generation":{"do_sample":true,"max_length":50}},"vocab_size":64`,
		"pythia":      `"architectures":["GPTNeoXForCausalLM"],"attention_bias":true,"attention_dropout":0.0,"bos_token_id":0,"classifier_dropout":0.1,"eos_token_id":0,"hidden_act":"gelu","hidden_dropout":0.0,"hidden_size":64,"initializer_range":0.02,"intermediate_size":128,"layer_norm_eps":1e-05,"max_position_embeddings":2048,"model_type":"gpt_neox","num_attention_heads":4,"num_hidden_layers":2,"rope_scaling":null,"rotary_emb_base":10000,"rotary_pct":0.25,"tie_word_embeddings":false,"torch_dtype":"float16","use_cache":true,"use_parallel_residual":true,"vocab_size":64`,
		"qwen3 moe":   sizes + `"architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","attention_bias":false,"attention_dropout":0.0,"decoder_sparse_step":1,"head_dim":16,"hidden_act":"silu","max_window_layers":48,"mlp_only_layers":[],"moe_intermediate_size":16,"norm_topk_prob":true,"num_experts":4,"num_experts_per_tok":2,"output_router_logits":false,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":1000000.0,"router_aux_loss_coef":0.001,"sliding_window":null,"tie_word_embeddings":false,"use_sliding_window":false`,
		"mixtral":     sizes + `"architectures":["MixtralForCausalLM"],"model_type":"mixtral","attention_dropout":0.0,"hidden_act":"silu","num_experts_per_tok":2,"num_local_experts":4,"output_router_logits":false,"rms_norm_eps":1e-05,"rope_theta":1000000.0,"router_aux_loss_coef":0.02,"sliding_window":null,"tie_word_embeddings":false`,
		"qwen3 next":  sizes + `"architectures":["Qwen3NextForCausalLM"],"model_type":"qwen3_next","attention_bias":false,"attention_dropout":0.0,"decoder_sparse_step":1,"full_attention_interval":4,"head_dim":32,"hidden_act":"silu","linear_conv_kernel_dim":4,"linear_key_head_dim":16,"linear_num_key_heads":2,"linear_num_value_heads":4,"linear_value_head_dim":16,"mlp_only_layers":[],"moe_intermediate_size":16,"norm_topk_prob":true,"num_experts":4,"num_experts_per_tok":2,"output_router_logits":false,"partial_rotary_factor":0.25,"rms_norm_eps":1e-06,"rope_scaling":null,"rope_theta":10000000,"router_aux_loss_coef":0.001,"shared_expert_intermediate_size":16,"tie_word_embeddings":false`,
		"qwen3.5":     `"architectures":["Qwen3_5ForConditionalGeneration"],"image_token_id":60,"model_type":"qwen3_5","text_config":{` + fmt.Sprintf(qwen35, "qwen3_5_text") + `},"tie_word_embeddings":true,"video_token_id":61,"vision_config":{"depth":2},"vision_end_token_id":62,"vision_start_token_id":63`,
		"qwen3.5 moe": `"architectures":["Qwen3_5MoeForConditionalGeneration"],"image_token_id":60,"model_type":"qwen3_5_moe","text_config":{` + fmt.Sprintf(qwen35, "qwen3_5_moe_text") + `,"moe_intermediate_size":16,"num_experts":4,"num_experts_per_tok":2,"shared_expert_intermediate_size":16,"router_aux_loss_coef":0.001,"output_router_logits":false},"vision_config":{"depth":2}`,
	} {
		t.Run(name, func(t *testing.T) {
			c, err := hf.ParseConfig([]byte("{" + text + "}"))
			if err != nil {
				t.Fatal(err)
			}
			gaps := arch.Check(&hf.Checkpoint{Config: *c})
			missing := len(gaps)
			gaps = slices.DeleteFunc(gaps, func(g arch.Gap) bool { return g.Kind == arch.GapMissing })
			if len(gaps) > 0 || missing == 0 {
				t.Errorf("%d tensors missing, gaps %v", missing, gaps)
			}
			if strings.HasSuffix(name, "wrap") && (c.Heads != 8 || c.HeadDim != 256 || c.VocabSize != 262208) {
				t.Errorf("sizes of the class: %d heads of %d, vocabulary %d", c.Heads, c.HeadDim, c.VocabSize)
			}
		})
	}
}
