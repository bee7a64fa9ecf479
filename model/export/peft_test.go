package export

import (
	"errors"
	"strings"
	"testing"
)

// TestParsePEFT: what changes no number is let pass, what is honoured is read, all else is refused by its name.
func TestParsePEFT(t *testing.T) {
	const good = `{"peft_type":"LORA","task_type":"CAUSAL_LM","r":4,"lora_alpha":8,"lora_dropout":0.0,"bias":"none","target_modules":["q_proj"]`
	for extra, refused := range map[string]string{
		"":                                 "",
		`,"use_rslora":false`:              "",
		`,"rank_pattern": { }`:             "",
		`,"modules_to_save":null`:          "",
		`,"corda_config":null`:             "",
		`,"revision":"main"`:               "",
		`,"use_rslora":true`:               "",
		`,"rank_pattern":{"q_proj":8}`:     "",
		`,"alpha_pattern":{"q_proj":8}`:    "",
		`,"use_dora":true`:                 "use_dora",
		`,"rank_pattern":{"q_proj":0}`:     "rank_pattern",
		`,"rank_pattern":{"q_proj":1.5}`:   "rank_pattern",
		`,"alpha_pattern":{"q_proj":-8}`:   "alpha_pattern",
		`,"alpha_pattern":{"a{1,1000}":8}`: "alpha_pattern",
		`,"modules_to_save":["lm_head"]`:   "modules_to_save",
		`,"something_new":{"a":1}`:         "something_new",
		`,"init_lora_weights":"pissa"`:     "init_lora_weights",
		`,"target_modules":[]`:             "target_modules",
		`,"x":1}{`:                         "adapter_config.json",
	} {
		_, err := parsePEFT([]byte(good + extra + "}"))
		if (refused == "") != (err == nil) || err != nil && (!errors.Is(err, ErrAdapter) || !strings.Contains(err.Error(), refused)) {
			t.Errorf("%s: %v, want %q", extra, err, refused)
		}
	}
	for from, to := range map[string]string{
		`"LORA"`: `"IA3"`, `"CAUSAL_LM"`: `"SEQ_CLS"`, `"none"`: `"all"`, `"r":4`: `"r":0`, `"r":4,`: `"r":1e9,`, `4,"lora_alpha"`: `1.5,"lora_alpha"`,
		`"lora_alpha":8`: `"lora_alpha":-1`, `"lora_dropout":0.0`: `"lora_dropout":2`, `,"target_modules":["q_proj"]`: "",
	} {
		text := strings.Replace(good+"}", from, to, 1)
		if _, err := parsePEFT([]byte(text)); !errors.Is(err, ErrAdapter) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "[]", "null", "1", strings.Repeat(" ", maxConfigBytes+1)} {
		if _, err := parsePEFT([]byte(text)); !errors.Is(err, ErrAdapter) {
			t.Errorf("%.10q: %v", text, err)
		}
	}
}

// FuzzParsePEFT: whatever is taken has numbers that an adapter can have.
func FuzzParsePEFT(f *testing.F) {
	f.Add([]byte(`{"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"],"use_dora":false}`))
	f.Add([]byte(`{"peft_type":"LORA","target_modules":"all","rank_pattern":{"(q|k)_proj$":2},"alpha_pattern":{"a.b":1e5},"use_rslora":true}`))
	f.Add([]byte(`{"r":1e400}`))
	f.Add([]byte(`{`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := parsePEFT(data)
		if err != nil {
			if !errors.Is(err, ErrAdapter) {
				t.Errorf("%v", err)
			}
			return
		}
		for _, module := range []string{"", "a.b", "model.layers.0.self_attn.q_proj"} {
			if rank, alpha := c.rankOf(module), c.alphaOf(module); rank < 1 || !(alpha > 0) || alpha-alpha != 0 {
				t.Errorf("%q of %s: rank %d, alpha %g", module, data, rank, alpha)
			}
		}
	})
}
