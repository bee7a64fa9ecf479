package lora

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"sort"
	"strings"
)

// AdapterConfig is the content of PEFT's adapter_config.json.
type AdapterConfig struct {
	PeftType      string   `json:"peft_type"`
	TaskType      string   `json:"task_type"`
	BaseModel     string   `json:"base_model_name_or_path"`
	Rank          int      `json:"r"`
	Alpha         float64  `json:"lora_alpha"`
	Dropout       float64  `json:"lora_dropout"`
	Bias          string   `json:"bias"`
	TargetModules []string `json:"target_modules"`
	InferenceMode bool     `json:"inference_mode"`
	FanInFanOut   bool     `json:"fan_in_fan_out"`
}

// NewAdapterConfig describes adapters over a base model for export.
func NewAdapterConfig(base string, c Config, adapters []Adapter) AdapterConfig {
	leaves := map[string]bool{}
	transposed := false
	for _, a := range adapters {
		transposed = transposed || a.Transposed
		for _, t := range a.Tensors(nil) {
			leaves[Leaf(strings.TrimSuffix(t.Name, map[bool]string{true: ".lora_B.weight", false: ".lora_A.weight"}[t.B]))] = true
		}
	}
	targets := make([]string, 0, len(leaves))
	for l := range leaves {
		targets = append(targets, l)
	}
	sort.Strings(targets)
	return AdapterConfig{PeftType: "LORA", TaskType: "CAUSAL_LM", BaseModel: base, Rank: c.Rank, Alpha: c.Alpha,
		Bias: "none", TargetModules: targets, InferenceMode: true, FanInFanOut: transposed}
}

// JSON is the file's text.
func (c AdapterConfig) JSON() []byte {
	b, err := json.MarshalIndent(c, "", "  ")
	if err != nil { // only a NaN or infinity, which neither Check nor Parse lets in
		panic(err)
	}
	return append(b, '\n')
}

// MaxConfigBytes bounds an adapter_config.json.
const MaxConfigBytes = 1 << 20

// ParseAdapterConfig reads an adapter_config.json. Everything that would change
// an adapter's numbers and is not done here is refused by its name.
func ParseAdapterConfig(data []byte) (AdapterConfig, error) {
	var c AdapterConfig
	if len(data) > MaxConfigBytes {
		return c, fmt.Errorf("parse adapter config: %w: %d bytes, at most %d", ErrConfig, len(data), MaxConfigBytes)
	}
	var raw map[string]json.RawMessage
	dec := json.NewDecoder(bytes.NewReader(data))
	if err := dec.Decode(&raw); err != nil {
		return c, fmt.Errorf("parse adapter config: %w: %w", ErrConfig, err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return c, fmt.Errorf("parse adapter config: %w: more than one JSON value", ErrConfig)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, fmt.Errorf("parse adapter config: %w: %w", ErrConfig, err)
	}
	if err := c.check(raw); err != nil {
		return c, fmt.Errorf("parse adapter config: %w", err)
	}
	return c, nil
}

// inert lists, by field, the only values that leave an adapter's numbers alone.
var inert = map[string][]string{
	"use_rslora": {"false"}, "use_dora": {"false"}, "lora_bias": {"false"}, "use_qalora": {"false"},
	"rank_pattern": {"{}"}, "alpha_pattern": {"{}"}, "modules_to_save": {"[]"}, "layer_replication": {"[]"},
	"layers_to_transform": {"[]"}, "layers_pattern": {"[]"}, "exclude_modules": {"[]"}, "trainable_token_indices": {"[]"}, "target_parameters": {"[]"},
	"megatron_config": {}, "eva_config": {}, "arrow_config": {}, "corda_config": {}, "loftq_config": {"{}"}, "alora_invocation_tokens": {"[]"},
}

func (c AdapterConfig) check(raw map[string]json.RawMessage) error {
	switch {
	case c.PeftType != "LORA":
		return fmt.Errorf("%w: peft_type is %q, only LORA is supported", ErrConfig, c.PeftType)
	case c.TaskType != "CAUSAL_LM" && c.TaskType != "":
		return fmt.Errorf("%w: task_type is %q, only CAUSAL_LM is supported", ErrConfig, c.TaskType)
	case c.Bias != "none" && c.Bias != "":
		return fmt.Errorf("%w: bias is %q, only none is supported", ErrConfig, c.Bias)
	case c.Rank < 1 || c.Rank > MaxRank:
		return fmt.Errorf("%w: r is %d, it is 1 to %d", ErrConfig, c.Rank, MaxRank)
	case !(c.Alpha > 0) || c.Alpha > 1e6:
		return fmt.Errorf("%w: lora_alpha is %g, it is above 0 and at most 1e6", ErrConfig, c.Alpha)
	case !(c.Dropout >= 0) || c.Dropout > 1 || math.IsNaN(c.Dropout):
		return fmt.Errorf("%w: lora_dropout is %g, it is 0 to 1", ErrConfig, c.Dropout)
	}
	fields := make([]string, 0, len(raw))
	for f := range raw {
		fields = append(fields, f)
	}
	sort.Strings(fields)
	for _, f := range fields {
		allowed, known := inert[f]
		if known && !isInert(raw[f], allowed) {
			return fmt.Errorf("%w: %s is %.60s, which is not supported", ErrConfig, f, raw[f])
		}
	}
	return nil
}

func isInert(value json.RawMessage, allowed []string) bool {
	var b bytes.Buffer
	if err := json.Compact(&b, value); err != nil {
		return false
	}
	if b.String() == "null" {
		return true
	}
	for _, a := range allowed {
		if b.String() == a {
			return true
		}
	}
	return false
}
