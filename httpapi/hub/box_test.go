package hub

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"smolgym/appliance"
	"smolgym/store/blob"
)

// boxes are what the scenarios run on; appliance_test.go adds the real one.
var boxes = map[string]func(t *testing.T) Box{"memory": func(*testing.T) Box { return newMemory() }}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func onEveryBox(t *testing.T, opt Options, scenario func(r *rig)) {
	for _, name := range slices.Sorted(maps.Keys(boxes)) {
		t.Run(name, func(t *testing.T) {
			box := boxes[name](t)
			opt := opt
			opt.Log = quiet
			h := New(box, opt)
			t.Cleanup(func() {
				if err := h.Close(); err != nil {
					t.Error(err)
				}
			})
			scenario(&rig{t, h, box})
		})
	}
}

// rig sends requests to a handler.
type rig struct {
	t   *testing.T
	h   *Handler
	box Box
}

const testToken = "tml-test"

// send sends a request with a token, unless the headers say otherwise.
func (r *rig) send(method, path string, body any, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	var raw []byte
	switch b := body.(type) {
	case nil:
	case []byte:
		raw = b
	case string:
		raw = []byte(b)
	default:
		var err error
		if raw, err = json.Marshal(b); err != nil {
			r.t.Fatal(err)
		}
	}
	req := httptest.NewRequest(method, "http://box"+path, bytes.NewReader(raw))
	req.Header.Set("Authorization", "Bearer "+testToken)
	for i := 0; i < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	if !Claims(req) {
		r.t.Fatalf("%s %s is not claimed", method, path)
	}
	r.h.ServeHTTP(w, req)
	return w
}

// want sends and decodes an answer that must have the status.
func (r *rig) want(status int, into any, method, path string, body any, headers ...string) *httptest.ResponseRecorder {
	r.t.Helper()
	w := r.send(method, path, body, headers...)
	if w.Code != status {
		r.t.Fatalf("%s %.200s: status %d, want %d: %.500s", method, path, w.Code, status, w.Body)
	}
	if into != nil {
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			r.t.Fatalf("%s %s: %v: %.300s", method, path, err, w.Body)
		}
	}
	return w
}

func (r *rig) create(repo string) {
	r.t.Helper()
	org, name, _ := strings.Cut(repo, "/")
	r.want(200, nil, "POST", "/api/repos/create", map[string]string{"organization": org, "name": name})
}

// put uploads files as a client would: small ones in the commit, large ones before it.
func (r *rig) put(repo string, files map[string][]byte) string {
	r.t.Helper()
	lines := []any{line("header", map[string]string{"summary": "test"})}
	for _, p := range slices.Sorted(maps.Keys(files)) {
		raw := files[p]
		if len(raw) <= largeBytes {
			lines = append(lines, line("file", map[string]any{"path": p, "encoding": "base64", "content": raw}))
			continue
		}
		r.putLarge(repo, raw)
		lines = append(lines, line("lfsFile", map[string]any{"path": p, "algo": "sha256", "oid": hexSum(raw), "size": len(raw)}))
	}
	return r.commitLines(repo, "main", lines...)
}

func (r *rig) putLarge(repo string, raw []byte) {
	r.t.Helper()
	var batch struct {
		Objects []struct {
			Actions map[string]struct{ Href string }
		}
	}
	r.want(200, &batch, "POST", "/"+repo+".git/info/lfs/objects/batch", map[string]any{"operation": "upload", "transfers": []string{"basic"},
		"objects": []any{map[string]any{"oid": hexSum(raw), "size": len(raw)}}})
	if up, ok := batch.Objects[0].Actions["upload"]; ok {
		r.want(200, nil, "PUT", strings.TrimPrefix(up.Href, "http://box"), raw, "Authorization", "")
	}
}

func line(key string, value any) any { return map[string]any{"key": key, "value": value} }

func ndjson(lines ...any) []byte {
	var b bytes.Buffer
	for _, l := range lines {
		raw, err := json.Marshal(l)
		if err != nil {
			panic(err)
		}
		b.Write(raw)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

func (r *rig) commitLines(repo, rev string, lines ...any) string {
	r.t.Helper()
	var out struct{ CommitOID string }
	r.want(200, &out, "POST", "/api/models/"+repo+"/commit/"+rev, ndjson(lines...))
	return out.CommitOID
}

func (r *rig) info(repo string) modelInfo {
	r.t.Helper()
	var m modelInfo
	r.want(200, &m, "GET", "/api/models/"+repo, nil)
	return m
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// noise is bytes that don't repeat.
func noise(seed uint64, n int) []byte {
	g := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	_, _ = g.Read(b)
	return b
}

// memory is a box without a disk. A model to it is a config.json that is JSON, and every shard that an index names.
type memory struct {
	mu      sync.Mutex
	content map[string][]byte
	sizes   map[string]int64
	models  map[string]appliance.ModelRecord
	docs    map[string][]byte
	used    map[string]bool
	scratch string
}

func newMemory() *memory {
	return &memory{content: map[string][]byte{}, sizes: map[string]int64{}, models: map[string]appliance.ModelRecord{}, docs: map[string][]byte{}, used: map[string]bool{}}
}

func notHere(what string) error { return appliance.Problemf(appliance.CodeNotFound, "no %s", what) }

func (m *memory) Model(name string) (appliance.ModelRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec, ok := m.models[name]
	if !ok {
		return rec, notHere("model " + name)
	}
	return rec, nil
}

func (m *memory) Models() ([]appliance.ModelRecord, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var list []appliance.ModelRecord
	for _, k := range slices.Sorted(maps.Keys(m.models)) {
		list = append(list, m.models[k])
	}
	return list, nil
}

func (m *memory) RemoveModel(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.models, name)
	delete(m.docs, name)
	return nil
}

func (m *memory) SetModel(name string, files []appliance.ManifestFile) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	rec := appliance.ModelRecord{Name: name, Created: time.Unix(1e9, 0)}
	here := map[string]bool{}
	for _, f := range files {
		here[f.Path] = true
		sum, _ := blob.ParseSum(f.SHA256.String())
		rec.Files = append(rec.Files, struct {
			Path   string   `json:"path"`
			Size   int64    `json:"size"`
			SHA256 blob.Sum `json:"sha256"`
			Blob   blob.ID  `json:"blob"`
		}{f.Path, f.Size, sum, 0})
	}
	for _, f := range files {
		raw := m.content[f.SHA256.String()]
		if f.Path == "config.json" && !json.Valid(raw) {
			return appliance.Problemf(appliance.CodeUnsupported, "config.json is not JSON")
		}
		if f.Path == "model.safetensors.index.json" {
			var index struct {
				Map map[string]string `json:"weight_map"`
			}
			_ = json.Unmarshal(raw, &index)
			for _, shard := range index.Map {
				if !here[shard] {
					return appliance.Problemf(appliance.CodeUnsupported, "%s is missing", shard)
				}
			}
		}
	}
	if m.used[name] {
		return appliance.Problemf(appliance.CodeConflict, "model %s is in use", name)
	}
	m.models[name] = rec
	return nil
}

type inMemory struct{ *bytes.Reader }

func (inMemory) Close() error { return nil }

func (m *memory) OpenContent(sum string) (Content, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b, ok := m.content[sum]; ok && int64(len(b)) == m.sizes[sum] {
		return inMemory{bytes.NewReader(b)}, nil
	}
	return nil, notHere("content")
}

func (m *memory) ContentState(sum string) (have, size int64, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	b, ok := m.content[sum]
	if !ok {
		return 0, 0, notHere("content")
	}
	return int64(len(b)), m.sizes[sum], nil
}

func (m *memory) PutContent(sum string, size, offset int64, r io.Reader) (int64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	have := int64(len(m.content[sum]))
	if have == size && m.content[sum] != nil {
		return size, nil
	}
	if offset > have {
		return have, appliance.Problemf(appliance.CodeConflict, "%d bytes are here", have)
	}
	b, err := io.ReadAll(r)
	if skip := have - offset; skip < int64(len(b)) {
		m.content[sum] = append(m.content[sum], b[skip:]...)
	}
	if m.content[sum] == nil {
		m.content[sum] = []byte{}
	}
	m.sizes[sum] = size
	have = int64(len(m.content[sum]))
	if err != nil {
		return have, appliance.Problemf(appliance.CodeUser, "the connection broke")
	}
	if have >= size && hexSum(m.content[sum]) != sum {
		delete(m.content, sum)
		return 0, appliance.Problemf(appliance.CodeUser, "content hash mismatch")
	}
	return have, nil
}

func (m *memory) Repository(name string) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if doc, ok := m.docs[name]; ok {
		return doc, nil
	}
	return nil, notHere("repository")
}

func (m *memory) Repositories() ([]string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Sorted(maps.Keys(m.docs)), nil
}

func (m *memory) PutRepository(name string, doc []byte, content []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range content {
		if _, ok := m.content[c]; !ok {
			return fmt.Errorf("repository %s: content %s is not here", name, c)
		}
	}
	m.docs[name] = doc
	return nil
}

func (m *memory) RemoveRepository(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.docs[name]; !ok {
		return notHere("repository")
	}
	delete(m.docs, name)
	return nil
}

func (m *memory) Scratch() (string, error) { return m.scratch, nil }

var _ http.Handler = (*Handler)(nil)
