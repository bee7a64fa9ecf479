package gguf

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"smolgym/model/hf"
	"smolgym/model/safetensors"
)

// Model is a checkpoint to be exported.
type Model struct {
	Name             string              // general.name; may be empty
	Config           []byte              // config.json in either spelling
	GenerationConfig []byte              // generation_config.json; may be nil
	Tokenizer        []byte              // tokenizer.json; nil for a file without tokenizer
	TokenizerConfig  []byte              // tokenizer_config.json, for its chat template; may be nil
	ChatTemplate     string              // overrides that of TokenizerConfig; may be empty
	Tensors          []safetensors.Entry // under the names of the checkpoint; their Data is streamed
}

// Export writes m as a GGUF file with its matrices as t: F16, BF16, F32 or Q8_0. Norms and biases are F32, as llama.cpp
// has them. Tensors are streamed: a head of a query matrix is the most that is held. What the format can't say is refused
// before a byte is written.
func Export(w io.Writer, m Model, t Type) error {
	metadata, entries, err := plan(m, t)
	if err != nil {
		return fmt.Errorf("export gguf: %w", err)
	}
	return Write(w, metadata, entries)
}

// ExportSize gives the number of bytes that [Export] will write.
func ExportSize(m Model, t Type) (int64, error) {
	metadata, entries, err := plan(m, t)
	if err != nil {
		return 0, fmt.Errorf("export gguf: %w", err)
	}
	return Size(metadata, entries)
}

func plan(m Model, t Type) ([]KV, []Entry, error) {
	if !slices.Contains(writable, t) {
		return nil, nil, fmt.Errorf("%w: encoding %s; f16, bf16, f32 and q8_0 can be written", ErrUnsupported, t)
	}
	c, err := hf.ParseConfig(m.Config)
	if err != nil {
		return nil, nil, err
	}
	fam := familyOf(func(f *family) bool {
		return f.writable && (f.modelType == c.ModelType || f.arch == "llama" && c.ModelType == "mistral")
	})
	if fam == nil {
		return nil, nil, fmt.Errorf("%w: a model of type %q; llama, mistral, qwen2 and qwen3 can be written", ErrUnsupported, shorten(c.ModelType))
	}
	var g gaps
	x := &exporter{m: m, c: c, fam: fam, t: t, gaps: &g}
	x.config()
	x.tensors()
	x.tokenizer()
	if err := g.err(); err != nil {
		return nil, nil, err
	}
	return x.metadata, x.entries, nil
}

// exporter collects what a file is made of, and all that the format can't say.
type exporter struct {
	m    Model
	c    *hf.Config
	fam  *family
	t    Type
	gaps *gaps

	metadata []KV
	entries  []Entry
}

func (x *exporter) put(key string, value any) { x.metadata = append(x.metadata, KV{key, value}) }

// expressed lists the fields of config.json that a file states, or that its tensors do.
var expressed = []string{
	"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
	"max_position_embeddings", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "rope_parameters", "attention_bias", "mlp_bias",
}

// fileTypes are the numbers of general.file_type.
var fileTypes = map[Type]uint32{F32: 0, F16: 1, Q8_0: 7, BF16: 32}

func (x *exporter) config() {
	c, arch := x.c, x.fam.arch
	for _, field := range c.Unused(expressed...) {
		x.gaps.add("config.json: %s can't be said in this format", field)
	}
	if c.HiddenAct != "" && c.HiddenAct != x.fam.act {
		x.gaps.add("config.json: hidden_act %q; the family has %s", c.HiddenAct, x.fam.act)
	}
	if c.RMSNormEps == nil || c.IntermediateSize == 0 || c.MaxPositions == 0 {
		x.gaps.add("config.json: rms_norm_eps, intermediate_size and max_position_embeddings are needed")
		return
	}
	x.put("general.architecture", arch)
	x.put("general.type", "model")
	if x.m.Name != "" {
		x.put("general.name", x.m.Name)
	}
	x.put("general.file_type", fileTypes[x.t])
	if x.t == Q8_0 {
		x.put("general.quantization_version", uint32(2))
	}
	for _, kv := range []struct {
		key   string
		value int
	}{
		{"vocab_size", c.VocabSize}, {"context_length", c.MaxPositions}, {"embedding_length", c.HiddenSize}, {"block_count", c.Layers},
		{"feed_forward_length", c.IntermediateSize}, {"attention.head_count", c.Heads}, {"attention.head_count_kv", c.KVHeads},
		{"attention.key_length", c.HeadDim}, {"attention.value_length", c.HeadDim}, {"rope.dimension_count", c.HeadDim},
	} {
		x.put(arch+"."+kv.key, uint32(kv.value)) // bounded by the parser
	}
	x.put(arch+".attention.layer_norm_rms_epsilon", float32(*c.RMSNormEps))
	x.rope()
}

func (x *exporter) rope() {
	r, key := x.c.Rope, x.fam.arch+".rope."
	x.put(key+"freq_base", float32(r.Theta))
	if r.PartialRotaryFactor != nil && *r.PartialRotaryFactor != 1 || x.c.RopeLocal != nil || x.c.HeadDim%2 != 0 || !(r.Theta > 0) {
		x.gaps.add("config.json: rope_parameters: partial or local rotation, or no base")
		return
	}
	switch r.Type {
	case "default":
	case "linear":
		x.put(key+"scaling.type", "linear")
		x.put(key+"scaling.factor", float32(r.Factor))
	case "yarn":
		if r.AttentionFactor != nil || r.MScale != nil || r.MScaleAllDim != nil || r.Truncate != nil && !*r.Truncate {
			x.gaps.add("config.json: rope_parameters: attention_factor, mscale and truncate can't be said in this format")
		}
		x.put(key+"scaling.type", "yarn")
		x.put(key+"scaling.factor", float32(r.Factor))
		x.put(key+"scaling.original_context_length", uint32(cmp.Or(r.OriginalMaxPositions, x.c.MaxPositions)))
		if r.BetaFast != nil {
			x.put(key+"scaling.yarn_beta_fast", float32(*r.BetaFast))
		}
		if r.BetaSlow != nil {
			x.put(key+"scaling.yarn_beta_slow", float32(*r.BetaSlow))
		}
	case "llama3":
		s := llama3Scaling{r.Factor, r.LowFreqFactor, r.HighFreqFactor, float64(r.OriginalMaxPositions)}
		factors := s.factors(r.Theta, x.c.HeadDim)
		x.entries = append(x.entries, Entry{ropeFreqs, F32, []int64{int64(len(factors))}, func(w io.Writer) error {
			b := make([]byte, 4*len(factors))
			if err := encode(b, F32, factors); err != nil {
				return err
			}
			_, err := w.Write(b)
			return err
		}})
	default:
		x.gaps.add("config.json: rope_parameters: scaling %q can't be said in this format", r.Type)
	}
}

func (x *exporter) tensors() {
	have := map[string]bool{}
	for _, e := range x.m.Tensors {
		if strings.HasSuffix(e.Name, ".inv_freq") {
			continue // a buffer of old files; it follows from the configuration
		}
		name := x.fam.toGGUF(e.Name, x.c.Layers)
		if name == "" {
			x.gaps.add("tensor %q is none of the family %s", shorten(e.Name), x.fam.modelType)
			continue
		}
		have[name] = true
		x.tensor(name, e)
	}
	needed := []string{"token_embd.weight", "output_norm.weight"}
	if tied := x.c.TieWordEmbeddings; tied == nil || !*tied {
		needed = append(needed, "output.weight")
	}
	for i := range x.c.Layers {
		for module := range x.fam.block {
			needed = append(needed, "blk."+strconv.Itoa(i)+"."+module+".weight")
		}
	}
	slices.Sort(needed)
	for _, name := range needed {
		if !have[name] {
			x.gaps.add("tensor %q is missing", x.fam.toHF(name, x.c.Layers))
		}
	}
	slices.SortStableFunc(x.entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(place(a.Name), place(b.Name)), strings.Compare(a.Name, b.Name))
	})
}

// place orders the tensors of a file: the embedding, the layers by number, the head.
func place(name string) int {
	if rest, ok := strings.CutPrefix(name, "blk."); ok {
		number, _, _ := strings.Cut(rest, ".")
		n, _ := strconv.Atoi(number) // toGGUF has checked it
		return n + 1
	}
	if strings.HasPrefix(name, "output") {
		return math.MaxInt
	}
	return 0
}

func (x *exporter) tensor(name string, e safetensors.Entry) {
	t := x.t
	if len(e.Shape) < 2 {
		t = F32
	}
	elements, ok := checkedElements(e.Shape)
	block, _ := t.Block()
	switch {
	case !e.DType.IsWeight() || !ok || len(e.Shape) == 0 || len(e.Shape) > 2:
		x.gaps.add("tensor %q: %s %v can't be written", shorten(e.Name), e.DType, e.Shape)
		return
	case e.Shape[len(e.Shape)-1]%block != 0:
		x.gaps.add("tensor %q: rows of %d are no blocks of %d, as %s has them; use f16", shorten(e.Name), e.Shape[len(e.Shape)-1], block, t)
		return
	}
	row := int64(1)
	if len(e.Shape) == 2 {
		row = e.Shape[1]
	}
	unit, head := int64(chunkElements), int64(0)
	if heads := x.fam.permutedHeads(name, int64(x.c.Heads), int64(x.c.KVHeads)); heads > 0 {
		head = int64(x.c.HeadDim)
		unit = head * row
		if e.Shape[0] != heads*head {
			x.gaps.add("tensor %q: it has %d rows, %d heads of %d are needed", shorten(e.Name), e.Shape[0], heads, head)
			return
		}
	}
	x.entries = append(x.entries, Entry{name, t, slices.Clone(e.Shape), func(w io.Writer) error {
		c := &converter{w: w, from: e.DType, to: t, row: row, head: head, room: make([]byte, 0, min(unit, elements)*e.DType.Size()), left: elements}
		if err := e.Data(c); err != nil {
			return err
		}
		return c.finish()
	}})
}

// converter re-encodes a stream of elements, a unit at a time: a chunk, or a head whose rows are interleaved.
type converter struct {
	w    io.Writer
	from safetensors.DType
	to   Type
	row  int64 // elements
	head int64 // rows of a head, 0 if the rows stay in order
	room []byte
	left int64 // elements that have not been written

	values, turned []float32
	out            []byte
}

func (c *converter) Write(p []byte) (int, error) {
	for n := 0; ; {
		k := min(cap(c.room)-len(c.room), len(p)-n)
		c.room = append(c.room, p[n:n+k]...)
		if n += k; n == len(p) && len(c.room) < cap(c.room) {
			return n, nil
		}
		if err := c.flush(); err != nil {
			return n, err
		}
		if n == len(p) {
			return n, nil
		}
	}
}

func (c *converter) finish() error {
	if len(c.room) > 0 {
		if err := c.flush(); err != nil {
			return err
		}
	}
	if c.left != 0 {
		return fmt.Errorf("%w: %d elements are missing", ErrLength, c.left)
	}
	return nil
}

func (c *converter) flush() error {
	size := c.from.Size()
	n := int64(len(c.room)) / size
	block, bytes := c.to.Block()
	if n > c.left || int64(len(c.room))%size != 0 || n%block != 0 || c.head > 0 && n != c.head*c.row {
		return fmt.Errorf("%w: the stream ends or goes on within a block or head", ErrLength)
	}
	if c.values == nil {
		c.values, c.out = make([]float32, n), make([]byte, n/block*bytes)
		if c.head > 0 {
			c.turned = make([]float32, n)
		}
	}
	values := c.values[:n]
	if err := safetensors.Float32s(values, c.from, c.room); err != nil {
		return err
	}
	if c.head > 0 {
		for r := range c.head {
			copy(c.turned[interleaved(r, c.head)*c.row:][:c.row], values[r*c.row:])
		}
		values = c.turned[:n]
	}
	out := c.out[:n/block*bytes]
	if err := encode(out, c.to, values); err != nil {
		return err
	}
	c.room, c.left = c.room[:0], c.left-n
	_, err := c.w.Write(out)
	return err
}

func (x *exporter) tokenizer() {
	if x.m.Tokenizer == nil {
		x.put(modelKey, noTokenizer)
		return
	}
	kvs, err := vocabularyOf(x.m.Tokenizer, x.c, x.ends())
	if err != nil {
		x.gaps.add("%v", err)
		return
	}
	x.metadata = append(x.metadata, kvs...)
	template, err := templateOf(x.m)
	if err != nil {
		x.gaps.add("%v", err)
	} else if template != "" {
		x.put(templateKey, template)
	}
}

// ends lists the ids that end a text: first that of config.json, then the others.
func (x *exporter) ends() []int {
	ends := slices.Clone(x.c.EOS)
	if x.m.GenerationConfig != nil {
		generation, err := hf.ParseGenerationConfig(x.m.GenerationConfig)
		if err != nil {
			x.gaps.add("%v", err)
			return ends
		}
		for _, id := range generation.EOS {
			if !slices.Contains(ends, id) {
				ends = append(ends, id)
			}
		}
	}
	return slices.DeleteFunc(ends, func(id int) bool { return id >= x.c.VocabSize })
}
