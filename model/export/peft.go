package export

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strings"

	"smolgym/model/lora"
)

// Bounds on the patterns of a configuration. PEFT reads them as regular expressions; nearly all are plain names.
const (
	maxPatterns     = 1 << 14 // entries of one map
	maxPatternBytes = 512
	maxExpressions  = 64 // entries that are more than a name
)

// maxConfigBytes bounds an adapter_config.json.
const maxConfigBytes = 1 << 20

// adapterConfig is the content of an adapter_config.json that is written.
type adapterConfig struct {
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

// peftConfig is what an adapter_config.json says that matters here.
type peftConfig struct {
	base    string
	rank    int
	alpha   float64
	rslora  bool
	targets []string // nil if the file gives an expression instead
	// parameters are those of experts that target_parameters names
	parameters []string
	layered    bool // layers or modules are left out by other fields
	ranks      []pattern
	alphas     []pattern
	warnings   []string
}

// pattern gives a value to the modules that it matches.
type pattern struct {
	key    string
	expr   *regexp.Regexp // nil for a plain name, whose dots match any character as PEFT has it
	number float64
}

// matches does what re.match(rf"(.*\.)?({key})$", module) does.
func (p *pattern) matches(module string) bool {
	if p.expr != nil {
		return p.expr.MatchString(module)
	}
	start := len(module) - len(p.key)
	if start < 0 || start > 0 && module[start-1] != '.' {
		return false
	}
	for i := range len(p.key) {
		if p.key[i] != module[start+i] && p.key[i] != '.' {
			return false
		}
	}
	return true
}

func find(patterns []pattern, module string, other float64) float64 {
	for i := range patterns {
		if patterns[i].matches(module) {
			return patterns[i].number
		}
	}
	return other
}

// rankOf is the rank of a module.
func (c *peftConfig) rankOf(module string) int { return int(find(c.ranks, module, float64(c.rank))) }

// alphaOf is the alpha that gives the module's scale when it is divided by the rank.
func (c *peftConfig) alphaOf(module string) float64 {
	alpha := find(c.alphas, module, c.alpha)
	if c.rslora {
		return alpha * math.Sqrt(float64(c.rankOf(module))) // the scale is alpha/sqrt(rank)
	}
	return alpha
}

// Fields: honoured ones are read, harmless ones change no number of a finished adapter, refused ones do; inert values are
// those of a field that is off.
var (
	honoured = []string{"peft_type", "task_type", "base_model_name_or_path", "r", "lora_alpha", "lora_dropout", "bias", "target_modules",
		"target_parameters", "use_rslora", "rank_pattern", "alpha_pattern", "fan_in_fan_out", "init_lora_weights", "layers_to_transform", "layers_pattern", "exclude_modules"}
	harmless = []string{"revision", "auto_mapping", "peft_version", "inference_mode", "runtime_config", "megatron_core", "megatron_config",
		"eva_config", "corda_config", "loftq_config", "lora_ga_config", "qalora_group_size"}
	refused = []string{"use_dora", "lora_bias", "modules_to_save", "trainable_token_indices", "layer_replication", "use_qalora",
		"use_bdlora", "arrow_config", "alora_invocation_tokens", "ensure_weight_tying", "kasa_config", "velora_config", "monteclora_config"}
	inert = []string{"null", "false", "{}", "[]", `""`}
	// gentle initialisations leave the base model's weights alone; others subtract from them what the adapter starts with.
	gentle = []string{"null", "true", "false", `"gaussian"`, `"eva"`, `"orthogonal"`}
)

// parsePEFT reads an adapter_config.json. All that is wrong with it is told at once.
func parsePEFT(text []byte) (*peftConfig, error) {
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("parse %s: %w: %d bytes, at most %d are allowed", adapterConfigName, ErrAdapter, len(text), maxConfigBytes)
	}
	list, _, err := membersOf(text)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w: %w", adapterConfigName, ErrAdapter, err)
	}
	r := &peftReader{fields: map[string]json.RawMessage{}}
	for _, m := range list {
		r.fields[m.name] = text[m.start:m.end]
	}
	r.read()
	if len(r.wrong) > 0 {
		return nil, fmt.Errorf("parse %s: %w: %s", adapterConfigName, ErrAdapter, several(r.wrong))
	}
	return &r.c, nil
}

type peftReader struct {
	fields map[string]json.RawMessage
	c      peftConfig
	wrong  []string
}

func (r *peftReader) problem(format string, args ...any) {
	r.wrong = append(r.wrong, fmt.Sprintf(format, args...))
}

func (r *peftReader) warn(format string, args ...any) {
	r.c.warnings = append(r.c.warnings, fmt.Sprintf(format, args...))
}

// stated says whether a field is there with a value that isn't one of nothing.
func (r *peftReader) stated(name string) bool {
	v, ok := r.fields[name]
	return ok && !slices.Contains(inert, compact(v))
}

func compact(v json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, v) != nil {
		return string(v)
	}
	return b.String()
}

// get decodes a field into p, if it is there and not null.
func (r *peftReader) get(name string, p any) {
	if v, ok := r.fields[name]; ok && string(v) != "null" {
		if err := json.Unmarshal(v, p); err != nil {
			r.problem("%s is %s", name, shorten(string(v)))
		}
	}
}

func (r *peftReader) read() {
	c := &r.c
	r.kind()
	r.get("base_model_name_or_path", &c.base)
	r.get("use_rslora", &c.rslora)
	c.rank, c.alpha = 8, 8 // PEFT's defaults
	r.get("r", &c.rank)
	r.get("lora_alpha", &c.alpha)
	if c.rank < 1 || c.rank > lora.MaxRank {
		r.problem("r is %d, it is 1 to %d", c.rank, lora.MaxRank)
	}
	if !(c.alpha > 0) || c.alpha > maxAlpha {
		r.problem("lora_alpha is %g, it is above 0 and at most %g", c.alpha, float64(maxAlpha))
	}
	c.ranks = r.patterns("rank_pattern", func(v float64) bool { return v >= 1 && v <= lora.MaxRank && v == math.Trunc(v) })
	c.alphas = r.patterns("alpha_pattern", func(v float64) bool { return v > 0 && v <= maxAlpha })
	r.targets()
	for _, name := range slices.Sorted(maps.Keys(r.fields)) {
		value := shorten(compact(r.fields[name]))
		switch {
		case slices.Contains(honoured, name) || slices.Contains(harmless, name) || !r.stated(name):
		case slices.Contains(refused, name):
			r.problem("%s is %s, which is not supported; merge the adapter with PEFT and import the model", name, value)
		default:
			r.problem("%s is %s, which is not known here; if it changes no number, take it out", shorten(name), value)
		}
	}
}

// kind refuses other methods, and what would need more than A and B.
func (r *peftReader) kind() {
	method, task, bias := "", "", "none"
	r.get("peft_type", &method)
	r.get("task_type", &task)
	r.get("bias", &bias)
	if method != "LORA" {
		r.problem("peft_type is %q, only LORA is supported", shorten(method))
	}
	if task != "CAUSAL_LM" && task != "" {
		r.problem("task_type is %q, only CAUSAL_LM is supported", shorten(task))
	}
	if bias != "none" {
		r.problem("bias is %q: trained biases are not supported, only none is", shorten(bias))
	}
	if v, ok := r.fields["init_lora_weights"]; ok && !slices.Contains(gentle, compact(v)) {
		r.problem("init_lora_weights is %s: it changes the base model's weights; save the adapter with path_initial_model_for_weight_conversion", shorten(compact(v)))
	}
	var dropout float64
	switch r.get("lora_dropout", &dropout); {
	case !(dropout >= 0 && dropout <= 1):
		r.problem("lora_dropout is %g, it is 0 to 1", dropout)
	case dropout != 0:
		r.warn("lora_dropout is %g: training goes on without dropout", dropout)
	}
	if r.stated("fan_in_fan_out") {
		r.warn("fan_in_fan_out is %s: it says how the base model is stored, which is known here", shorten(compact(r.fields["fan_in_fan_out"])))
	}
}

func (r *peftReader) targets() {
	c := &r.c
	c.layered = r.stated("layers_to_transform") || r.stated("layers_pattern") || r.stated("exclude_modules")
	if r.stated("target_parameters") {
		r.get("target_parameters", &c.parameters)
		if len(c.parameters) > maxPatterns {
			r.problem("target_parameters names %d, at most %d are allowed", len(c.parameters), maxPatterns)
		}
	}
	v, ok := r.fields["target_modules"]
	switch {
	case len(c.parameters) > 0 && !r.stated("target_modules"):
	case !ok || string(v) == "null":
		r.problem("target_modules is missing")
	case v[0] == '"':
		r.warn("target_modules is an expression: whether it means more modules than the file has was not checked")
	default:
		r.get("target_modules", &c.targets)
		if len(c.targets) == 0 {
			r.problem("target_modules names no module")
		}
		if len(c.targets) > maxPatterns {
			r.problem("target_modules names %d modules, at most %d are allowed", len(c.targets), maxPatterns)
		}
	}
}

// patterns reads a map of patterns in its order, since the first that matches counts.
func (r *peftReader) patterns(field string, allowed func(float64) bool) []pattern {
	if !r.stated(field) {
		return nil
	}
	text := r.fields[field]
	list, _, err := membersOf(text)
	if err != nil || len(list) > maxPatterns {
		r.problem("%s is no map of at most %d modules and numbers", field, maxPatterns)
		return nil
	}
	patterns := make([]pattern, 0, len(list))
	expressions := 0
	for _, m := range list {
		p := pattern{key: m.name}
		if json.Unmarshal(text[m.start:m.end], &p.number) != nil || !allowed(p.number) {
			r.problem("%s of %q is %s", field, shorten(m.name), shorten(string(text[m.start:m.end])))
			continue
		}
		if len(m.name) > maxPatternBytes {
			r.problem("%s has a name of %d bytes, at most %d are allowed", field, len(m.name), maxPatternBytes)
			continue
		}
		if !plain(m.name) {
			expressions++
			if p.expr, err = expression(m.name); err != nil || expressions > maxExpressions {
				r.problem("%s: the expression %q is not supported; write the modules' names", field, shorten(m.name))
				continue
			}
		}
		patterns = append(patterns, p)
	}
	return patterns
}

func plain(name string) bool {
	for i := range len(name) {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-') {
			return false
		}
	}
	return name != ""
}

// expression compiles a pattern as PEFT uses it. Repetition counts and Unicode classes could make a short one large.
func expression(key string) (*regexp.Regexp, error) {
	if strings.Contains(key, "{") || strings.Contains(key, `\p`) || strings.Contains(key, `\P`) {
		return nil, fmt.Errorf("%w: expression %q", ErrAdapter, shorten(key))
	}
	return regexp.Compile(`^(?:.*\.)?(?:` + key + `)$`)
}
