package hf

import (
	"errors"
	"strings"
	"testing"
)

const inner = `"vocab_size":8,"hidden_size":8,"num_hidden_layers":1,"num_attention_heads":4`

func TestWrappers(t *testing.T) {
	c, err := ParseConfig([]byte(`{"model_type":"qwen3_5","architectures":["Outer"],"eos_token_id":3,"tie_word_embeddings":true,"image_token_id":4,"vision_config":{},"text_config":{"eos_token_id":2,` + inner + `}}`))
	if err != nil {
		t.Fatal(err)
	}
	if c.Wrapper != "qwen3_5" || c.ModelType != "qwen3_5_text" || c.Architectures[0] != "Outer" || c.EOS[0] != 2 || !*c.TieWordEmbeddings || c.HeadDim != 256 {
		t.Errorf("%+v", c)
	}
	if _, has := c.Raw["image_token_id"]; has {
		t.Error("a field of the outer object counts as the decoder's")
	}
	for text, want := range map[string]string{
		`{"model_type":"llava","text_config":{` + inner + `}}`:                                   "gemma3, qwen3_5, qwen3_5_moe only",
		`{"model_type":"gemma3","llm_config":{` + inner + `}}`:                                   "llm_config",
		`{"model_type":"gemma3","text_config":{"model_type":"gemma2",` + inner + `}}`:            `it is "gemma3_text"`,
		`{"model_type":"gemma3","text_config":7}`:                                                "not a JSON object",
		`{"model_type":5,"text_config":{` + inner + `}}`:                                         "of several parts",
		`{"model_type":"gemma3","text_config":{"vocab_size":8,"vocab_size":9}}`:                  "twice",
		`{"model_type":"gemma3","quantization_config":{},"text_config":{"hidden_size":"large"}}`: "hidden_size",
	} {
		if _, err := ParseConfig([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	c, err = ParseConfig([]byte(`{"model_type":"gemma3","quantization_config":{"quant_method":"gptq"},"text_config":{` + inner + `}}`))
	if err != nil || c.quantization() == "" {
		t.Errorf("a quantised wrapper passes for a plain one: %v", err)
	}
}

func TestParts(t *testing.T) {
	c := &Checkpoint{Tensors: map[string]Tensor{"a": {Name: "a"}, "b": {Name: "b"}}}
	c.Compose("both", "b", "a")
	c.Compose("half", "a", "gone")
	if p := c.Parts("both"); len(p) != 2 || p[0].Name != "b" || p[1].Name != "a" {
		t.Errorf("parts %v", p)
	}
	if p := c.Parts("a"); len(p) != 1 || p[0].Name != "a" {
		t.Errorf("a stored tensor is %v", p)
	}
	if len(c.Parts("half")) != 0 || len(c.Parts("gone")) != 0 {
		t.Error("a missing part passes")
	}
	w := c.Weights(nil)
	for _, name := range []string{"half", "gone"} {
		if err := w.Float32s(nil, name); !errors.Is(err, ErrMissing) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
