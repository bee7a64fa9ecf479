package appliance

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smolgym/model/golden"
	"smolgym/store"
	"smolgym/store/blob"
)

// clock is a time that tests move.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Microsecond) // so that the order of events shows
	return c.now
}

func (c *clock) advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// tinyModel reads the model of a golden archive of our own.
func tinyModel(t *testing.T, name string) map[string][]byte {
	t.Helper()
	path := filepath.Join("..", "testdata", "goldens", name+".tar.gz")
	if _, err := os.Stat(path); err != nil {
		path = filepath.Join("..", "testdata", "families", name+".tar.gz")
	}
	files := map[string][]byte{}
	for name, raw := range unpacked(t, path) {
		switch base := filepath.Base(name); base {
		case "config.json", "generation_config.json", "model.safetensors":
			files[base] = raw
		}
	}
	return files
}

// unpacked is what an archive holds.
func unpacked(t *testing.T, path string) map[string][]byte {
	t.Helper()
	return golden.Unpack(t, path)
}

// sink collects a test's log without writing after its end.
func sink() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

// open opens an appliance that is closed and checked at the end of the test.
func open(t *testing.T, opt Options) *Appliance {
	t.Helper()
	if opt.Data == "" {
		opt.Data = t.TempDir()
	}
	if opt.Device == "" {
		opt.Device = "reference"
	}
	if opt.Log == nil {
		opt.Log = sink()
	}
	a, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, a) })
	return a
}

// shut closes an appliance and verifies its store.
func shut(t *testing.T, a *Appliance) {
	t.Helper()
	if a.closed() {
		return
	}
	if err := a.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	db, err := store.Open(a.db.Path(), store.Options{})
	if err != nil {
		t.Errorf("open store again: %v", err)
		return
	}
	report, err := db.Check(context.Background(), true)
	if err != nil {
		t.Errorf("check store: %v", err)
	}
	for _, p := range report.Problems {
		t.Errorf("store: %s", p)
	}
	if err := db.Close(); err != nil {
		t.Errorf("close store: %v", err)
	}
}

func (a *Appliance) closed() bool {
	select {
	case <-a.closing:
		return true
	default:
		return false
	}
}

func manifest(files map[string][]byte) (list []ManifestFile) {
	for _, name := range slices.Sorted(maps.Keys(files)) {
		list = append(list, ManifestFile{name, int64(len(files[name])), blob.Sum(sha256.Sum256(files[name]))})
	}
	return list
}

// add stores a model.
func add(t *testing.T, a *Appliance, name string, files map[string][]byte) (store.Model, error) {
	t.Helper()
	u, err := a.BeginUpload(name, manifest(files))
	if err != nil {
		return store.Model{}, err
	}
	for _, f := range u.Files {
		if f.Done {
			continue
		}
		if _, err := a.PutFile(u.ID, f.Path, f.Have, bytes.NewReader(files[f.Path][f.Have:])); err != nil {
			t.Fatal(err)
		}
	}
	m, err := a.CommitUpload(u.ID)
	if err != nil {
		if err := a.AbortUpload(u.ID); err != nil {
			t.Fatal(err)
		}
	}
	return m, err
}

// ready is an appliance with the tiny model "local/tiny" and a session.
func ready(t *testing.T, opt Options) (*Appliance, string) {
	t.Helper()
	a := open(t, opt)
	if _, err := add(t, a, "tiny", tinyModel(t, "steps_llama")); err != nil {
		t.Fatal(err)
	}
	id, err := a.CreateSession(SessionRequest{SDKVersion: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return a, id
}

// wait fetches an answer.
func wait(t *testing.T, a *Appliance, ticket Ticket, err error) *Answer {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ans, err := a.Retrieve(ctx, ticket.RequestID)
	if err != nil {
		t.Fatal(err)
	}
	if ans.Result == nil && ans.Failure == nil {
		t.Fatalf("request not done after a minute: %s", ans.Reason)
	}
	return ans
}

// result is an answer that must have gone well.
func result[T any](t *testing.T, a *Appliance, ticket Ticket, err error) *T {
	t.Helper()
	ans := wait(t, a, ticket, err)
	if ans.Failure != nil {
		t.Fatalf("%s failed: %s", ans.Kind, ans.Failure.Message)
	}
	return ans.Result.(*T)
}

// fails is an answer that must be a failure of category user with all the words.
func fails(t *testing.T, a *Appliance, ticket Ticket, err error, words ...string) {
	t.Helper()
	ans := wait(t, a, ticket, err)
	if ans.Failure == nil {
		t.Fatalf("%s went well; want a failure with %q", ans.Kind, words)
	}
	if ans.Failure.Category != "user" {
		t.Errorf("category %s, want user: %s", ans.Failure.Category, ans.Failure.Message)
	}
	contains(t, ans.Failure.Message, words...)
}

func contains(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("message %q lacks %q", text, w)
		}
	}
}

// refused is an error at once, of a code, with all the words.
func refused(t *testing.T, err error, code Code, words ...string) {
	t.Helper()
	var p *Problem
	if !errors.As(err, &p) {
		t.Fatalf("got %v, want a problem with %q", err, words)
	}
	if p.Code != code {
		t.Errorf("code %s, want %s: %v", p.Code, code, p)
	}
	contains(t, p.Error(), words...)
}

func seed(n int64) *int64 { return &n }

func lora(session string, n int64) CreateModelRequest {
	return CreateModelRequest{SessionID: session, ModelSeq: n, BaseModel: "tiny",
		LoRA: &LoRAConfig{Rank: 4, Seed: seed(1), Attention: true, MLP: true, Unembed: true}}
}

func full(session string, n int64) CreateModelRequest {
	return CreateModelRequest{SessionID: session, ModelSeq: n, BaseModel: "tiny",
		LoRA: &LoRAConfig{Rank: 0, Attention: true, MLP: true, Unembed: true}}
}

// lesson is a batch with something to learn.
func lesson() Batch {
	var data []Datum
	for k := range int32(2) {
		tokens := make([]int32, 12)
		targets := make([]int64, 12)
		weights := make([]float32, 12)
		for i := range tokens {
			tokens[i] = (int32(i)*7 + 3*k) % 61
			targets[i] = int64((int32(i+1)*7 + 3*k) % 61)
			weights[i] = 1
		}
		data = append(data, Datum{Tokens: tokens, Inputs: map[string]Tensor{
			"target_tokens": {I64: targets, Shape: []int{12}}, "weights": {F32: weights, Shape: []int{12}}}})
	}
	return Batch{Data: data, Loss: "cross_entropy"}
}

var adam = AdamParams{LearningRate: 0.01, Beta1: 0.9, Beta2: 0.95, Eps: 1e-12}

// step does a forward_backward numbered seq and an optim_step numbered seq+1 and
// returns the loss before it.
func step(t *testing.T, a *Appliance, run string, seq int64) float64 {
	t.Helper()
	ticket, err := a.ForwardBackward(ForwardBackwardRequest{RunID: run, Seq: seq, Batch: lesson()})
	fb := result[ForwardBackwardResult](t, a, ticket, err)
	ticket, err = a.OptimStep(OptimStepRequest{RunID: run, Seq: seq + 1, Adam: adam})
	result[OptimResult](t, a, ticket, err)
	return fb.Metrics["loss:sum"]
}

// state is the content of a run's weights and optimizer as of number seq: equal
// content has equal blobs.
func state(t *testing.T, a *Appliance, run string, seq int64, name string) map[string]blob.ID {
	t.Helper()
	ticket, err := a.SaveWeights(SaveRequest{RunID: run, Seq: seq, Name: name})
	path := result[SaveResult](t, a, ticket, err).Path
	cp, err := a.Checkpoint(path)
	if err != nil {
		t.Fatal(err)
	}
	ids := map[string]blob.ID{}
	for _, w := range slices.Concat(cp.Tensors, cp.Optimizer) {
		ids[w.Name] = w.Blob
	}
	return ids
}
