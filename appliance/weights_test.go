package appliance

import (
	"bytes"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"smolgym/model/safetensors"
)

// taught is an appliance with a model of our own and a run of it that has learned.
// It gives the run's two checkpoints.
func taught(t *testing.T, model string, isFull bool) (a *Appliance, weights, sampler string) {
	t.Helper()
	a = open(t, Options{})
	if _, err := add(t, a, "tiny", tinyModel(t, model)); err != nil {
		t.Fatal(err)
	}
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req := lora(session, 0)
	if isFull {
		req = full(session, 0)
	}
	ticket, err := a.CreateModel(req)
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	step(t, a, run, 1)
	step(t, a, run, 3)
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 5, Name: "w"})
	weights = result[SaveResult](t, a, ticket, err).Path
	ticket, err = a.SaveSamplerWeights(SaveRequest{RunID: run, Seq: 6, Name: "s"})
	return a, weights, result[SaveSamplerResult](t, a, ticket, err).Path
}

// scores are the log-probabilities of a fixed prompt under a model or a checkpoint.
func scores(t *testing.T, a *Appliance, model, path string) []float32 {
	t.Helper()
	return scoresOf(t, a, model, path, prompt(12))
}

func scoresOf(t *testing.T, a *Appliance, model, path string, ids []int32) []float32 {
	t.Helper()
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	id, err := a.CreateSampler(SamplerRequest{SessionID: session, BaseModel: model, ModelPath: path})
	if err != nil {
		t.Fatal(err)
	}
	n := 1
	ticket, err := a.Sample(SampleRequest{SamplerID: id, Count: 1, Prompt: ids, MaxTokens: &n, Temperature: 1, TopP: 1, Stop: &Stop{}, PromptLogprobs: true})
	return result[SampleResult](t, a, ticket, err).PromptLogprobs[1:]
}

func near(t *testing.T, what string, got, want []float32, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%s: %d values, want %d", what, len(got), len(want))
	}
	for i := range got {
		if d := math.Abs(float64(got[i] - want[i])); !(d <= tolerance) {
			t.Fatalf("%s: position %d is %v, want %v", what, i, got[i], want[i])
		}
	}
}

// exportFiles makes every file of an export and checks its announced size.
func exportFiles(t *testing.T, a *Appliance, path string, o ExportOptions) map[string][]byte {
	t.Helper()
	x, err := a.Export(path, o)
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	files := map[string][]byte{}
	for _, f := range x.Plan.Files {
		var b bytes.Buffer
		if err := f.Write(&b); err != nil {
			t.Fatal(err)
		}
		if int64(b.Len()) != f.Size {
			t.Fatalf("%s has %d bytes, announced were %d", f.Path, b.Len(), f.Size)
		}
		files[f.Path] = b.Bytes()
	}
	return files
}

// importFolder sends an adapter's files.
func importFolder(t *testing.T, a *Appliance, model, name string, files map[string][]byte) (Imported, error) {
	t.Helper()
	u, err := a.BeginImport(model, manifest(files))
	if err != nil {
		return Imported{}, err
	}
	for _, f := range u.Files {
		if f.Done {
			continue
		}
		if _, err := a.PutFile(u.ID, f.Path, 0, bytes.NewReader(files[f.Path])); err != nil {
			t.Fatal(err)
		}
	}
	im, err := a.CommitImport(u.ID, name)
	if err != nil {
		if err := a.AbortUpload(u.ID); err != nil {
			t.Fatal(err)
		}
	}
	return im, err
}

// What was trained leaves in every form and comes back as what it was, with LoRA
// and full update, tied and untied heads.
func TestWeightsOutAndIn(t *testing.T) {
	for _, model := range []string{"steps_llama", "steps_llama_tied"} {
		for _, isFull := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s full=%t", model, isFull), func(t *testing.T) {
				a, weights, sampler := taught(t, model, isFull)
				want := scores(t, a, "", sampler)
				before := scores(t, a, "tiny", "")
				if slices.Equal(want, before) {
					t.Fatal("the run has learned nothing")
				}
				for _, path := range []string{weights, sampler} {
					merged := exportFiles(t, a, path, ExportOptions{Form: FormMerged, DType: "f32"})
					if _, ok := merged["config.json"]; !ok {
						t.Fatalf("merged files %v", slices.Sorted(maps.Keys(merged)))
					}
					name := "merged-" + filepath.Base(path)
					if _, err := add(t, a, name, merged); err != nil {
						t.Fatal(err)
					}
					near(t, "merged", scores(t, a, name, ""), want, 1e-4)
				}
				if isFull {
					_, err := a.Export(weights, ExportOptions{Form: FormAdapter})
					refused(t, err, CodeUnsupported, "full update", "merged")
					return
				}
				files := exportFiles(t, a, weights, ExportOptions{})
				if _, ok := files["adapter_config.json"]; !ok {
					t.Fatalf("adapter files %v", slices.Sorted(maps.Keys(files)))
				}
				im, err := importFolder(t, a, "tiny", "again", files)
				if err != nil {
					t.Fatal(err)
				}
				near(t, "imported adapter", scores(t, a, "", im.Path()), want, 0)
				trainOn(t, a, im.Path())
			})
		}
	}
}

// Adapters on experts, as our export writes them and as PEFT saves them of a model whose experts are one parameter, are
// sampled from, with PEFT's numbers, and trained on.
func TestExpertAdapters(t *testing.T) {
	a, weights, sampler := taught(t, "mixtral", false)
	files := exportFiles(t, a, weights, ExportOptions{Form: FormAdapter})
	im, err := importFolder(t, a, "tiny", "ours", files)
	if err != nil {
		t.Fatal(err)
	}
	near(t, "our export", scores(t, a, "", im.Path()), scores(t, a, "", sampler), 0)
	trainOn(t, a, im.Path())

	saved := unpacked(t, filepath.Join("..", "model", "export", "testdata", "peft_experts.tar.gz"))
	for _, c := range []string{"fused.mixtral", "fused_patterns.mixtral", "single.mixtral"} {
		folder := map[string][]byte{}
		for _, f := range []string{"adapter_config.json", "adapter_model.safetensors"} {
			folder[f] = saved[c+"/"+f]
		}
		im, err := importFolder(t, a, "tiny", strings.ReplaceAll(c, ".", "-"), folder)
		if err != nil {
			t.Fatal(err)
		}
		ids, want := peftNumbers(t, saved[c+"/numbers.safetensors"])
		near(t, c, scoresOf(t, a, "", im.Path(), ids), want, 1e-4)
		trainOn(t, a, im.Path())
	}
}

// peftNumbers are the first text of a golden and the log-probabilities of its tokens but the first.
func peftNumbers(t *testing.T, file []byte) (ids []int32, logprobs []float32) {
	t.Helper()
	f, err := safetensors.Parse(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	read := func(name string) ([]float32, []int64) {
		info, _ := f.Tensor(name)
		x := make([]float32, info.Elements())
		if err := f.ReadFloat32s(x, name); err != nil {
			t.Fatal(err)
		}
		return x, info.Shape
	}
	tokens, _ := read("ids")
	logits, shape := read("logits")
	n, vocab := int(shape[1]), int(shape[2])
	for i := range n {
		ids = append(ids, int32(tokens[i]))
		if i == 0 {
			continue
		}
		row, sum := logits[(i-1)*vocab:i*vocab], 0.0
		for _, v := range row {
			sum += math.Exp(float64(v))
		}
		logprobs = append(logprobs, float32(float64(row[ids[i]])-math.Log(sum)))
	}
	return ids, logprobs
}

// trainOn makes a run from a checkpoint and trains it: the loss goes down.
func trainOn(t *testing.T, a *Appliance, path string) {
	t.Helper()
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ticket, err := a.LoadWeights(LoadRequest{SessionID: session, Path: path})
	run := result[LoadResult](t, a, ticket, err).ModelID
	first := step(t, a, run, 1)
	step(t, a, run, 3)
	if last := step(t, a, run, 5); !(last < first) {
		t.Errorf("loss %v after two steps, %v before", last, first)
	}
}

// Adapters that don't fit are refused with the complete list, and leave nothing.
func TestBadImports(t *testing.T) {
	a, weights, _ := taught(t, "steps_llama", false)
	good := exportFiles(t, a, weights, ExportOptions{Form: FormAdapter})
	_, total, err := a.Checkpoints(Page{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = importFolder(t, a, "me/unknown", "x", good)
	refused(t, err, CodeNotFound, "me/unknown", "model add")
	_, err = importFolder(t, a, "tiny", "../x", good)
	refused(t, err, CodeUser, "checkpoint name")
	for _, c := range []struct {
		file, content string
		words         []string
	}{
		{"adapter_config.json", `{"peft_type":"LORA","r":4,"lora_alpha":8,"target_modules":["q_proj"],"use_dora":true}`, []string{"dora"}},
		{"adapter_config.json", "{", []string{"adapter_config.json"}},
		{"adapter_model.safetensors", "short", []string{"adapter_model.safetensors"}},
	} {
		bad := maps.Clone(good)
		bad[c.file] = []byte(c.content)
		_, err = importFolder(t, a, "tiny", "x", bad)
		refused(t, err, CodeUnsupported, c.words...)
	}
	if _, now, err := a.Checkpoints(Page{}); err != nil || now != total {
		t.Errorf("%d checkpoints, %d before: %v", now, total, err)
	}
	u, err := a.BeginImport("tiny", manifest(good))
	if err != nil {
		t.Fatal(err)
	}
	_, err = a.CommitUpload(u.ID)
	refused(t, err, CodeUser, "adapter", "import")
}

// A GGUF file is stored as it is, describes itself, samples and trains.
func TestGGUFModel(t *testing.T) {
	a, _, sampler := taught(t, "steps_llama", true)
	want := scores(t, a, "", sampler)
	files := exportFiles(t, a, sampler, ExportOptions{Form: FormGGUF, DType: "f32"})
	if len(files) != 1 {
		t.Fatalf("files %v", slices.Sorted(maps.Keys(files)))
	}
	m, err := add(t, a, "file", files)
	if err != nil {
		t.Fatal(err)
	}
	if m.Family != "llama" || len(m.Files) != 1 || m.Files[0].Path != "model.gguf" || m.Parameters == 0 {
		t.Errorf("record %+v", m)
	}
	near(t, "gguf", scores(t, a, "file", ""), want, 1e-4)
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req := lora(session, 0)
	req.BaseModel = "file"
	ticket, err := a.CreateModel(req)
	run := result[CreateModelResult](t, a, ticket, err).ModelID
	first := step(t, a, run, 1)
	if last := step(t, a, run, 3); !(last < first) {
		t.Errorf("loss %v after a step, %v before", last, first)
	}
	ticket, err = a.SaveWeights(SaveRequest{RunID: run, Seq: 5, Name: "w"})
	path := result[SaveResult](t, a, ticket, err).Path
	merged := exportFiles(t, a, path, ExportOptions{Form: FormMerged, DType: "f32"})
	if _, err := add(t, a, "whole", merged); err != nil {
		t.Fatal(err)
	}
	near(t, "merged from gguf", scores(t, a, "whole", ""), scores(t, a, "", path), 1e-4)
	broken := map[string][]byte{"model.gguf": files["model.gguf"][:100]}
	_, err = add(t, a, "broken", broken)
	refused(t, err, CodeUnsupported, "model.gguf")
}

// What can't be exported says why.
func TestExportRefusals(t *testing.T) {
	a, weights, _ := taught(t, "steps_llama", false)
	for _, c := range []struct {
		path  string
		o     ExportOptions
		code  Code
		words []string
	}{
		{"tinker://x/weights/y", ExportOptions{}, CodeNotFound, []string{"tinker://x/weights/y"}},
		{"x", ExportOptions{}, CodeUser, []string{"tinker://"}},
		{weights, ExportOptions{Form: "odd"}, CodeUser, []string{"odd", "adapter"}},
		{weights, ExportOptions{Form: FormONNX, DType: "bf16"}, CodeUser, []string{"bf16", "f32"}},
		{weights, ExportOptions{Form: FormONNX, File: "a/b.onnx"}, CodeUser, []string{"a/b.onnx"}},
		{weights, ExportOptions{Form: FormMerged, DType: "q4_0"}, CodeUser, []string{"q4_0", "bf16"}},
		{weights, ExportOptions{Form: FormGGUF, DType: "q9"}, CodeUser, []string{"q9", "q8_0"}},
	} {
		_, err := a.Export(c.path, c.o)
		refused(t, err, c.code, c.words...)
	}
}
