package appliance

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// Names that could leave the data folder, or mean something else, are refused,
// and nothing is written anywhere but in it.
func TestHostileNames(t *testing.T) {
	root := t.TempDir()
	a := open(t, Options{Data: filepath.Join(root, "data")})
	long := strings.Repeat("a", 4096)
	files := tinyModel(t, "steps_llama")
	for _, name := range []string{"", "/abs", "../x", "a/../b", "a/b/c", "a\x00b", long, "a/" + long, "runs/x", "rack/small", "api/x", ".", "..", "a--b", "a b", "-x", "a/", "/a", "a:", "a\\b", "ü"} {
		_, err := a.BeginUpload(name, manifest(files))
		refused(t, err, CodeUser, "model name")
	}
	for _, path := range []string{"", "/etc/passwd", "../x", "a/../../b", "a\x00b", long, ".", "..", "a\\b", "sub/config.json", "C:\\x"} {
		odd := maps.Clone(files)
		odd[path] = []byte("x")
		_, err := a.BeginUpload("odd", manifest(odd))
		refused(t, err, CodeUser)
	}
	_, err := a.BeginUpload("none", nil)
	refused(t, err, CodeUser, "no files")
	if err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			if rel, _ := filepath.Rel(root, path); rel != filepath.Join("data", "smolgym.db") && rel != filepath.Join("data", "lock") {
				t.Errorf("a file appeared: %s", rel)
			}
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}

func TestModels(t *testing.T) {
	a := open(t, Options{Context: 16})
	files := tinyModel(t, "steps_llama")
	m, err := add(t, a, "me/tiny:v2", files)
	if err != nil {
		t.Fatal(err)
	}
	if m.Name != "me/tiny:v2" || m.Family != "llama" || m.Parameters == 0 || m.Context == 0 {
		t.Errorf("record %+v", m)
	}
	if _, err := add(t, a, "bare", files); err != nil {
		t.Fatal(err)
	}
	_, err = add(t, a, "bare", files)
	refused(t, err, CodeConflict, "local/bare", "exists")
	caps, err := a.Capabilities()
	if err != nil || len(caps) != 2 || caps[0] != (Capability{"local/bare", 16}) {
		t.Errorf("capabilities %+v, %v", caps, err)
	}
	for _, name := range []string{"bare", "local/bare"} {
		if m, err := a.Model(name); err != nil || m.Name != "local/bare" {
			t.Errorf("model %q: %+v, %v", name, m, err)
		}
	}
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	req := lora(session, 0)
	req.BaseModel = "bare"
	ticket, err := a.CreateModel(req)
	result[CreateModelResult](t, a, ticket, err)
	refused(t, a.RemoveModel("bare"), CodeConflict, "in use", session)
	if err := a.FinishSession(session, "success", ""); err != nil {
		t.Fatal(err)
	}
	if err := a.eng.Do(t.Context(), func() {}); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveModel("bare"); err != nil {
		t.Fatal(err)
	}
	refused(t, a.RemoveModel("bare"), CodeNotFound, "local/bare")
	_, err = a.Tokenize("me/tiny:v2", "x", false)
	refused(t, err, CodeUser, "tokenizer.json")
}

// FR-19: a broken connection keeps what arrived; the model is listed only when
// whole, and is then what was sent.
func TestFR19UploadResumes(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Options{Data: dir})
	files := tinyModel(t, "llama")
	u, err := a.BeginUpload("big", manifest(files))
	if err != nil {
		t.Fatal(err)
	}
	weights := files["model.safetensors"]
	half := io.MultiReader(bytes.NewReader(weights[:len(weights)/2]), iotest.ErrReader(errors.New("connection reset")))
	_, err = a.PutFile(u.ID, "model.safetensors", 0, FromClient(half))
	refused(t, err, CodeUser, "connection broke")
	_, err = a.CommitUpload(u.ID)
	refused(t, err, CodeUser, "not all here", "config.json", "model.safetensors")
	if list, err := a.Models(); err != nil || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
	_, err = a.PutFile(u.ID, "model.safetensors", 0, bytes.NewReader(weights))
	refused(t, err, CodeConflict, "go on at offset")
	_, err = a.PutFile(u.ID, "other.bin", 0, bytes.NewReader(weights))
	refused(t, err, CodeNotFound, "other.bin")
	shut(t, a)

	a = open(t, Options{Data: dir})
	_, err = a.Upload(u.ID)
	refused(t, err, CodeNotFound, "begin it again")
	if u, err = a.BeginUpload("big", manifest(files)); err != nil {
		t.Fatal(err)
	}
	for _, f := range u.Files {
		if f.Path == "model.safetensors" && f.Have != int64(len(weights)/2) {
			t.Errorf("%d bytes survived the restart, want %d", f.Have, len(weights)/2)
		}
		if _, err := a.PutFile(u.ID, f.Path, f.Have, bytes.NewReader(files[f.Path][f.Have:])); err != nil {
			t.Fatal(err)
		}
	}
	m, err := a.CommitUpload(u.ID)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files { // what is stored is what was sent
		f, ok := m.File(path)
		if !ok || f.SHA256 != sha256.Sum256(want) || !bytes.Equal(content(t, a, f.SHA256.String()), want) {
			t.Errorf("%s is stored with hash %s", path, f.SHA256)
		}
	}
	wrong := maps.Clone(files)
	u, err = a.BeginUpload("wrong", manifest(wrong))
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range u.Files {
		if !f.Done {
			t.Errorf("file %s is here and was asked for again", f.Path)
		}
	}
}

func content(t *testing.T, a *Appliance, sum string) []byte {
	t.Helper()
	c, err := a.OpenContent(sum)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := io.ReadAll(io.NewSectionReader(c, 0, c.Size()))
	if err := errors.Join(err, c.Close()); err != nil {
		t.Fatal(err)
	}
	return raw
}

// FR-18, FR-20: what is odd about a model and taken is a warning that is kept with it.
func TestFR20Warnings(t *testing.T) {
	a := open(t, Options{})
	files := tinyModel(t, "steps_llama")
	files["config.json"] = bytes.Replace(files["config.json"], []byte(`"tie_word_embeddings": false`), []byte(`"tie_word_embeddings": true`), 1)
	m, err := add(t, a, "tied", files)
	if err != nil {
		t.Fatal(err)
	}
	contains(t, m.Meta["warnings"], "tie_word_embeddings is true, but lm_head.weight differs from model.embed_tokens.weight", "head of its own")
	if _, err := add(t, a, "plain", tinyModel(t, "steps_llama")); err != nil {
		t.Fatal(err)
	}
	near(t, "the head that the file brings", scores(t, a, "tied", ""), scores(t, a, "plain", ""), 0)
}

// A model's context is the one that it is served with, and a cap is said.
func TestContextOfLongRope(t *testing.T) {
	a := open(t, Options{})
	files := tinyModel(t, "steps_llama")
	files["config.json"] = bytes.Replace(files["config.json"], []byte(`"rope_parameters": {`), []byte(`"rope_parameters": {"short_factor": [1, 1, 1, 1], "long_factor": [2, 3, 4, 5], "original_max_position_embeddings": 8,`), 1)
	files["config.json"] = bytes.Replace(files["config.json"], []byte(`"rope_type": "default"`), []byte(`"rope_type": "longrope"`), 1)
	m, err := add(t, a, "long", files)
	if err != nil {
		t.Fatal(err)
	}
	if m.Context != 8 {
		t.Errorf("context %d, want the original length", m.Context)
	}
	contains(t, m.Meta["warnings"], "long_factor")
}

// What can't be taken is refused with the reasons, before it is listed.
func TestRefusedModels(t *testing.T) {
	a := open(t, Options{})
	for _, c := range []struct {
		name   string
		change func(map[string][]byte)
		words  []string
	}{
		{"no weights", func(f map[string][]byte) { delete(f, "model.safetensors") }, []string{"safetensors"}},
		{"no config", func(f map[string][]byte) { delete(f, "config.json") }, []string{"config.json"}},
		{"missing shard", func(f map[string][]byte) {
			f["model-00001-of-00002.safetensors"] = f["model.safetensors"]
			delete(f, "model.safetensors")
			f["model.safetensors.index.json"] = []byte(`{"weight_map":{"model.embed_tokens.weight":"model-00001-of-00002.safetensors","model.norm.weight":"model-00002-of-00002.safetensors"}}`)
		}, []string{"model-00002-of-00002.safetensors"}},
		{"hostile header", func(f map[string][]byte) {
			w := bytes.Clone(f["model.safetensors"])
			binary.LittleEndian.PutUint64(w, 1<<62)
			f["model.safetensors"] = w
		}, []string{"model.safetensors"}},
		{"unknown architecture", func(f map[string][]byte) {
			f["config.json"] = bytes.Replace(f["config.json"], []byte(`"llama"`), []byte(`"mamba9"`), 1)
		}, []string{"mamba9"}},
		{"wrong dtype", func(f map[string][]byte) {
			f["model.safetensors"] = bytes.Replace(f["model.safetensors"], []byte(`"F32"`), []byte(`"I32"`), 1)
		}, []string{"I32"}},
		{"bad tokenizer", func(f map[string][]byte) { f["tokenizer.json"] = []byte(`{"model":{"type":"Magic"}}`) }, []string{"tokenizer.json", "Magic"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			files := tinyModel(t, "steps_llama")
			c.change(files)
			_, err := add(t, a, "bad", files)
			refused(t, err, CodeUnsupported, append(c.words, "local/bad")...)
		})
	}
	if list, err := a.Models(); err != nil || len(list) != 0 {
		t.Errorf("listed %+v, %v", list, err)
	}
	if _, err := add(t, a, "good", tinyModel(t, "steps_llama")); err != nil {
		t.Errorf("after the refusals: %v", err)
	}
}

func TestOpenRefusals(t *testing.T) {
	for _, c := range []struct {
		opt   Options
		words []string
	}{
		{Options{Device: "cuda"}, []string{"cuda", "--device cpu"}},
		{Options{Device: "cuda:1"}, []string{"cuda:1"}},
		{Options{Device: "tpu"}, []string{"tpu"}},
		{Options{Precision: "fp16"}, []string{"fp16", "CUDA"}},
		{Options{Precision: "int3"}, []string{"int3"}},
	} {
		c.opt.Data = filepath.Join(t.TempDir(), "data")
		a, err := Open(c.opt)
		if err == nil {
			t.Errorf("%+v: opened", c.opt)
			shut(t, a)
			continue
		}
		contains(t, err.Error(), c.words...)
		if _, err := os.Stat(filepath.Join(c.opt.Data, "smolgym.db")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%+v: refused, but the store was made: %v", c.opt, err)
		}
	}
}
