package hf

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
)

// ropeTypes lists, for each scaling, the fields that it needs and those that it may have besides theta and the partial
// factor. A field of another scaling has no effect in the reference either and becomes a warning.
var ropeTypes = map[string]struct{ needs, may []string }{
	"default":  {nil, nil},
	"linear":   {[]string{"factor"}, nil},
	"dynamic":  {[]string{"factor"}, []string{"original_max_position_embeddings"}},
	"yarn":     {[]string{"factor"}, []string{"original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"}},
	"longrope": {[]string{"short_factor", "long_factor"}, []string{"original_max_position_embeddings", "factor", "attention_factor"}},
	"llama3":   {[]string{"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}, nil},
}

// ropeBasics are the fields of a rotary object that count with every scaling, ropeScalings those that some scaling reads.
var ropeBasics = []string{"rope_theta", "rope_type", "type", "partial_rotary_factor"}

var ropeScalings = []string{
	"factor", "low_freq_factor", "high_freq_factor",
	"original_max_position_embeddings", "beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate",
	"short_factor", "long_factor",
}

// thetaDefault is true of the families whose configuration class takes 10000 for an absent base.
var thetaDefault = map[string]bool{
	"llama": true, "mistral": true, "qwen2": true, "qwen3": true, "qwen3_moe": true, "gemma2": true, "gpt_neox": true,
	"phi3": true, "granite": true, "olmo2": true,
}

// readRope brings the spellings together: rope_parameters holds everything; or rope_scaling holds the scaling and the
// rest stands beside it under names that differ by family.
func (c *Config) readRope(r *reader) {
	name, value := r.find("rope_parameters", "rope_scaling")
	inner := map[string]json.RawMessage{}
	if value != nil {
		var err error
		if inner, err = object(value); err != nil {
			r.problem("%s is %s: an object is needed: %v", name, brief(value), err)
			return
		}
	}
	c.ropeRest = map[string]json.RawMessage{}
	full, hasFull := inner["full_attention"]
	local, hasLocal := inner["sliding_attention"]
	if hasFull || hasLocal {
		c.readRopeByLayer(r, name, inner, full, local)
		return
	}
	c.Rope = c.ropeOf(&reader{members: c.withOuter(r, inner, "rope_theta", "rotary_emb_base"), prefix: name + ".", problems: r.problems})
	if theta := r.number(1e-9, 1e18, "rope_local_base_freq"); theta != nil {
		c.RopeLocal = &Rope{Type: "default", Theta: *theta}
	}
}

// readRopeByLayer reads rope_parameters that hold one object per kind of layer.
func (c *Config) readRopeByLayer(r *reader, name string, inner map[string]json.RawMessage, full, local json.RawMessage) {
	for _, key := range slices.Sorted(maps.Keys(inner)) {
		if key != "full_attention" && key != "sliding_attention" {
			r.problem("%s.%s stands beside full_attention and sliding_attention: it belongs into them", name, shorten(key))
		}
	}
	ropes := [2]Rope{}
	for i, part := range []struct {
		name  string
		value json.RawMessage
		outer string
	}{{"full_attention", full, "rope_theta"}, {"sliding_attention", local, "rope_local_base_freq"}} {
		members, err := object(part.value)
		if err != nil {
			r.problem("%s.%s is %s: an object is needed", name, part.name, brief(part.value))
			continue
		}
		ropes[i] = c.ropeOf(&reader{members: c.withOuter(r, members, part.outer), prefix: name + "." + part.name + ".", problems: r.problems})
	}
	c.Rope, c.RopeLocal = ropes[0], &ropes[1]
}

// withOuter adds to a rotary object what the file states beside it. Where both state it they must agree, except for the
// original length, which beside the object is the whole model's, and the partial factor, which transformers 5 writes
// there with a class's default: the object's own count.
func (c *Config) withOuter(r *reader, inner map[string]json.RawMessage, theta ...string) map[string]json.RawMessage {
	members := maps.Clone(inner)
	for _, pair := range []struct {
		field string
		outer []string
	}{
		{"rope_theta", theta},
		{"partial_rotary_factor", []string{"partial_rotary_factor", "rotary_pct"}},
		{"original_max_position_embeddings", []string{"original_max_position_embeddings"}},
	} {
		field := pair.field
		name, value := r.find(pair.outer...)
		if value == nil {
			continue
		}
		if own, ok := members[field]; !ok || isNull(own) {
			members[field] = value
		} else if field == "rope_theta" && !same(own, value) {
			r.problem("%s is %s but the rotary parameters say %s: remove one of them", name, brief(value), brief(own))
		}
	}
	return members
}

// ropeOf reads a rotary object that is complete by now.
func (c *Config) ropeOf(r *reader) Rope {
	o := Rope{Type: c.ropeType(r)}
	def := 0.0
	if thetaDefault[c.ModelType] {
		def = 10000
	}
	o.Theta = or(r.number(1e-9, 1e18, "rope_theta"), def)
	o.PartialRotaryFactor = r.number(1e-6, 1, "partial_rotary_factor")
	o.Factor = or(r.number(1e-6, maxScale, "factor"), 0)
	o.LowFreqFactor = or(r.number(1e-6, maxScale, "low_freq_factor"), 0)
	o.HighFreqFactor = or(r.number(1e-6, maxScale, "high_freq_factor"), 0)
	o.OriginalMaxPositions = or(r.integer(1, maxPositions, "original_max_position_embeddings"), 0)
	o.BetaFast = r.number(0, maxScale, "beta_fast")
	o.BetaSlow = r.number(0, maxScale, "beta_slow")
	o.AttentionFactor = r.number(0, maxScale, "attention_factor")
	o.MScale = r.number(-maxScale, maxScale, "mscale")
	o.MScaleAllDim = r.number(-maxScale, maxScale, "mscale_all_dim")
	o.Truncate = r.boolean("truncate")
	positive := func(v float64) bool { return v > 0 && v <= maxScale }
	o.ShortFactor = list(r, maxHeadDim, "positive numbers", positive, "short_factor")
	o.LongFactor = list(r, maxHeadDim, "positive numbers", positive, "long_factor")

	rule, known := ropeTypes[o.Type]
	if !known {
		return o // the family's builder refuses it, together with all else it can't take
	}
	for _, field := range rule.needs {
		if _, v := r.find(field); v == nil {
			r.problem("%s%s is missing: scaling %q needs it", r.prefix, field, o.Type)
		}
	}
	if o.Type == "llama3" && o.HighFreqFactor <= o.LowFreqFactor && o.HighFreqFactor != 0 {
		r.problem("%shigh_freq_factor is %g: it must be above low_freq_factor, %g", r.prefix, o.HighFreqFactor, o.LowFreqFactor)
	}
	c.sortRopeFields(r, o.Type, slices.Concat(rule.needs, rule.may))
	return o
}

func (c *Config) ropeType(r *reader) string {
	kind := r.text("rope_type", "type")
	switch kind {
	case "":
		return "default"
	case "su": // the first name of longrope, in published Phi-3 files
		return "longrope"
	}
	return kind
}

// sortRopeFields sees that no field of the object is lost: those that the scaling doesn't read become warnings, those
// that Rope doesn't hold are kept for Unused.
func (c *Config) sortRopeFields(r *reader, kind string, reads []string) {
	for _, field := range slices.Sorted(maps.Keys(r.members)) {
		value := r.members[field]
		switch {
		case isNull(value):
		case slices.Contains(ropeBasics, field), slices.Contains(reads, field):
		case !slices.Contains(ropeScalings, field):
			c.ropeRest["rope_parameters."+field] = value
		case field == "original_max_position_embeddings" && c.Has(field): // the model's, not the scaling's
		default:
			c.Warnings = append(c.Warnings, fmt.Sprintf("config.json: %s%s has no effect: scaling %q does not read it", r.prefix, field, kind))
		}
	}
}
