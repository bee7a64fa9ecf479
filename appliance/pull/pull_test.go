package pull

import (
	"bytes"
	"context"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func sumOf(b []byte) string {
	s := sha256.Sum256(b)
	return hex.EncodeToString(s[:])
}

func gitOf(b []byte) string {
	s := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...))
	return hex.EncodeToString(s[:])
}

func noise(seed byte, n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{seed}).Read(b)
	return b
}

// hub is a scripted one.
type hub struct {
	*httptest.Server
	files    map[string][]byte
	cut      map[string]int   // bytes after which an answer breaks, once a request
	hold     int              // bytes after which an answer of more waits until the client goes away
	fail     map[string][]int // statuses before the right answer, by path
	entries  func([]map[string]any) []map[string]any
	noRanges bool
	token    string
	asked    []string
	ranges   []string
}

const commit = "0123456789abcdef0123456789abcdef01234567"

func newHub(t *testing.T) *hub {
	h := &hub{cut: map[string]int{}, fail: map[string][]int{}, files: map[string][]byte{
		"config.json": []byte(`{"a":1}`), "tokenizer.json": []byte("{}"), "README.md": []byte("# x"), "model.safetensors": noise(1, 5<<20),
		"pytorch_model.bin": noise(2, 100), "model.onnx": noise(3, 100), "original/params.json": []byte("{}")}}
	h.Server = httptest.NewServer(h)
	t.Cleanup(h.Close)
	return h
}

func (h *hub) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.asked = append(h.asked, r.URL.Path)
	if s := h.fail[r.URL.Path]; len(s) > 0 {
		h.fail[r.URL.Path] = s[1:]
		w.WriteHeader(s[0])
		return
	}
	if h.token != "" && r.Header.Get("Authorization") != "Bearer "+h.token {
		w.Header().Set("X-Error-Message", "Invalid credentials in Authorization header")
		w.WriteHeader(401)
		return
	}
	path, ok := strings.CutPrefix(r.URL.Path, "/org/m/resolve/"+commit+"/")
	switch {
	case r.URL.Path == "/api/models/org/m/revision/main":
		fmt.Fprintf(w, `{"id":"org/m","sha":%q}`, commit)
	case r.URL.Path == "/api/models/org/m/tree/"+commit:
		h.tree(w, r)
	case ok && h.files[path] != nil:
		h.send(w, r, path)
	default:
		w.Header().Set("X-Error-Message", "Repository not found")
		w.WriteHeader(404)
	}
}

// tree answers three entries a page.
func (h *hub) tree(w http.ResponseWriter, r *http.Request) {
	var list []map[string]any
	for _, p := range slices.Sorted(maps.Keys(h.files)) {
		raw := h.files[p]
		e := map[string]any{"type": "file", "path": p, "size": len(raw), "oid": gitOf(raw)}
		if len(raw) > 1<<20 {
			e["lfs"] = map[string]any{"oid": sumOf(raw), "size": len(raw), "pointerSize": 133}
		}
		list = append(list, e)
	}
	if h.entries != nil {
		list = h.entries(list)
	}
	at := 0
	_, _ = fmt.Sscan(r.URL.Query().Get("cursor"), &at)
	list = list[at:]
	if len(list) > 3 {
		list = list[:3]
		w.Header().Set("Link", fmt.Sprintf(`<%s%s?cursor=%d>; rel="next"`, h.URL, r.URL.Path, at+3))
	}
	_ = json.NewEncoder(w).Encode(list)
}

func (h *hub) send(w http.ResponseWriter, r *http.Request, path string) {
	raw := h.files[path]
	h.ranges = append(h.ranges, path+" "+r.Header.Get("Range"))
	w.Header().Set("ETag", `"`+gitOf(raw)+`"`)
	if len(raw) > 1<<20 {
		w.Header().Set("ETag", `"`+sumOf(raw)+`"`)
	}
	if h.noRanges {
		r.Header.Del("Range")
	}
	if h.hold > 0 && len(raw) > h.hold { // the rest never comes
		w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
		_, _ = w.Write(raw[:h.hold])
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	if n := h.cut[path]; n > 0 {
		http.ServeContent(&cutter{w, n}, r, "", time.Time{}, bytes.NewReader(raw))
		panic(http.ErrAbortHandler)
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(raw))
}

// cutter breaks the connection after some bytes.
type cutter struct {
	http.ResponseWriter
	left int
}

func (c *cutter) Write(b []byte) (int, error) {
	if len(b) > c.left {
		_, _ = c.ResponseWriter.Write(b[:c.left])
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(b)
	return c.ResponseWriter.Write(b)
}

// memory is a sink.
type memory struct {
	name      string
	files     map[string]File
	have      map[string][]byte
	committed bool
}

func (m *memory) Begin(_ context.Context, name string, files []File) (string, []State, error) {
	if m.have == nil {
		m.have = map[string][]byte{}
	}
	m.name, m.files = name, map[string]File{}
	var states []State
	for _, f := range files {
		m.files[f.Path] = f
		n := int64(len(m.have[f.Path]))
		states = append(states, State{f, n, n == f.Size})
	}
	return "id", states, nil
}

func (m *memory) Put(_ context.Context, _, path string, offset int64, r io.Reader) (State, error) {
	f := m.files[path]
	if offset != int64(len(m.have[path])) {
		return State{f, int64(len(m.have[path])), false}, fmt.Errorf("offset %d, have %d", offset, len(m.have[path]))
	}
	b, err := io.ReadAll(io.LimitReader(r, f.Size-offset))
	m.have[path] = append(m.have[path], b...)
	s := State{f, int64(len(m.have[path])), int64(len(m.have[path])) == f.Size}
	if s.Done && sumOf(m.have[path]) != f.SHA256 {
		m.have[path] = nil
		return State{File: f}, errors.New("content hash mismatch")
	}
	return s, err
}

func (m *memory) Commit(context.Context, string) error {
	for p, f := range m.files {
		if sumOf(m.have[p]) != f.SHA256 {
			return fmt.Errorf("%s is not whole", p)
		}
	}
	m.committed = true
	return nil
}

func options(h *hub) Options {
	return Options{Name: "org/m", From: h.URL, Wait: func(context.Context, time.Duration) error { return nil }}
}

func TestPull(t *testing.T) {
	h, m := newHub(t), &memory{}
	var told []Progress
	o := options(h)
	o.Progress = func(p Progress) { told = append(told, p) }
	r, err := Model(context.Background(), m, o)
	if err != nil || !m.committed || r.Commit != commit || m.name != "org/m" {
		t.Fatalf("%+v, %v", r, err)
	}
	if got := slices.Sorted(maps.Keys(m.files)); !slices.Equal(got, []string{"README.md", "config.json", "model.safetensors", "tokenizer.json"}) {
		t.Errorf("pulled %q", got)
	}
	for p := range m.files {
		if !bytes.Equal(m.have[p], h.files[p]) {
			t.Errorf("%s: other bytes", p)
		}
	}
	last := told[len(told)-1]
	if len(told) < 5 || last.Have != last.Total || last.Total < 5<<20 {
		t.Errorf("told %d times, at last %+v", len(told), last)
	}
	// Again: nothing large is fetched.
	h.ranges = nil
	if _, err := Model(context.Background(), m, o); err != nil || slices.ContainsFunc(h.ranges, func(s string) bool { return strings.HasPrefix(s, "model") }) {
		t.Errorf("again: %v, %q", err, h.ranges)
	}
}

// TestBroken: each try gets a mebibyte further, and the next goes on there.
func TestBroken(t *testing.T) {
	for _, noRanges := range []bool{false, true} {
		h, m := newHub(t), &memory{}
		h.noRanges = noRanges
		h.cut["model.safetensors"] = 1 << 20
		h.fail["/api/models/org/m/revision/main"] = []int{503, 429}
		_, err := Model(context.Background(), m, options(h))
		if noRanges { // always the same first mebibyte: no progress
			if !errors.Is(err, ErrUnreachable) || len(m.have["model.safetensors"]) != 1<<20 {
				t.Errorf("without ranges: %v", err)
			}
			delete(h.cut, "model.safetensors") // another day
			_, err = Model(context.Background(), m, options(h))
		}
		if err != nil || !m.committed || !bytes.Equal(m.have["model.safetensors"], h.files["model.safetensors"]) {
			t.Errorf("ranges %v: %v", !noRanges, err)
		}
		if !noRanges && !slices.Contains(h.ranges, "model.safetensors bytes=4194304-") {
			t.Errorf("asked for %q", h.ranges)
		}
	}
}

func TestStopped(t *testing.T) {
	h, m := newHub(t), &memory{}
	h.hold = 3 << 20
	ctx, cancel := context.WithCancel(context.Background())
	o := options(h)
	o.Progress = func(p Progress) {
		if p.Have > 2<<20 {
			cancel()
		}
	}
	if _, err := Model(ctx, m, o); !errors.Is(err, context.Canceled) || m.committed {
		t.Fatalf("stopped: %v", err)
	}
	before := len(m.have["model.safetensors"])
	if before == 0 {
		t.Fatal("nothing was kept")
	}
	h.hold = 0
	if _, err := Model(context.Background(), m, options(h)); err != nil || !m.committed {
		t.Fatal(err)
	}
	if !slices.Contains(h.ranges, fmt.Sprintf("model.safetensors bytes=%d-", before)) {
		t.Errorf("asked for %q", h.ranges)
	}
}

func TestRefused(t *testing.T) {
	edit := func(path, key string, value any) func([]map[string]any) []map[string]any {
		return func(l []map[string]any) []map[string]any {
			for _, e := range l {
				if e["path"] == path {
					e[key] = value
				}
			}
			return l
		}
	}
	other := map[string]any{"oid": sumOf(nil), "size": 5 << 20}
	for name, c := range map[string]struct {
		change func(h *hub, o *Options)
		want   error
		says   string
	}{
		"no model":            {func(_ *hub, o *Options) { o.Name = "org/none" }, ErrNotFound, "Repository not found"},
		"no revision":         {func(_ *hub, o *Options) { o.Revision = "v9" }, ErrNotFound, "revision v9"},
		"no token":            {func(h *hub, _ *Options) { h.token = "hf_x" }, ErrNotAllowed, "token"},
		"nobody there":        {func(_ *hub, o *Options) { o.From = "http://127.0.0.1:1" }, ErrUnreachable, ""},
		"always 500":          {func(h *hub, _ *Options) { h.fail["/api/models/org/m/revision/main"] = slices.Repeat([]int{500}, 99) }, ErrUnreachable, ""},
		"pickles only":        {func(h *hub, _ *Options) { delete(h.files, "model.safetensors") }, nil, "pickled"},
		"no weights":          {func(h *hub, _ *Options) { h.files = map[string][]byte{"config.json": []byte("{}")} }, nil, "safetensors"},
		"list of another sum": {func(h *hub, _ *Options) { h.entries = edit("model.safetensors", "lfs", other) }, ErrContent, "model.safetensors"},
		"other small file":    {func(h *hub, _ *Options) { h.entries = edit("config.json", "oid", strings.Repeat("0", 40)) }, ErrContent, "config.json"},
		"path that escapes":   {func(h *hub, _ *Options) { h.entries = edit("config.json", "path", "..") }, ErrHub, ".."},
		"path with backslash": {func(h *hub, _ *Options) { h.entries = edit("config.json", "path", `..\x.json`) }, ErrHub, ""},
		"negative size":       {func(h *hub, _ *Options) { h.entries = edit("config.json", "size", -1) }, ErrHub, "config.json"},
		"no sum":              {func(h *hub, _ *Options) { h.entries = edit("config.json", "oid", "") }, ErrHub, "config.json"},
		"index of nothing": {func(h *hub, _ *Options) {
			h.files = map[string][]byte{"a.safetensors": {1}, "model.safetensors.index.json": []byte(`{"weight_map":{"x":"../b.safetensors"}}`)}
		}, ErrHub, "b.safetensors"},
	} {
		t.Run(name, func(t *testing.T) {
			h, m := newHub(t), &memory{}
			o := options(h)
			c.change(h, &o)
			_, err := Model(context.Background(), m, o)
			if err == nil || m.committed || c.want != nil && !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v", err)
			}
		})
	}
	for _, name := range []string{"", "x", "../x", "a/b/c", "a/..", "a/b?c", "/a", "a/"} {
		if _, err := Model(context.Background(), &memory{}, Options{Name: name}); err == nil {
			t.Errorf("name %q was taken", name)
		}
	}
	for _, from := range []string{"ftp://x", "x", "http://", "http://u:p@x", "file:///etc"} {
		if _, err := Model(context.Background(), &memory{}, Options{Name: "a/b", From: from}); err == nil {
			t.Errorf("hub %q was taken", from)
		}
	}
}

// TestIndex: of several forms of the weights, the one that the index names.
func TestIndex(t *testing.T) {
	h, m := newHub(t), &memory{}
	delete(h.files, "model.safetensors")
	maps.Copy(h.files, map[string][]byte{"model.safetensors.index.json": []byte(`{"weight_map":{"a":"model-1.safetensors","b":"model-2.safetensors"}}`),
		"model-1.safetensors": noise(4, 2<<20), "model-2.safetensors": noise(5, 100), "consolidated.safetensors": noise(6, 100)})
	if _, err := Model(context.Background(), m, options(h)); err != nil {
		t.Fatal(err)
	}
	if _, ok := m.files["consolidated.safetensors"]; ok || m.files["model-2.safetensors"].Size != 100 || m.files["model.safetensors.index.json"].Size == 0 {
		t.Errorf("pulled %v", slices.Sorted(maps.Keys(m.files)))
	}
}

// TestToken: the token doesn't follow a redirect to another host.
func TestToken(t *testing.T) {
	h, m := newHub(t), &memory{}
	h.token = "hf_secret"
	leaked := false
	far := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		leaked = leaked || r.Header.Get("Authorization") != ""
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(h.files["model.safetensors"]))
	}))
	defer far.Close()
	inner := h.Config.Handler
	h.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/model.safetensors") {
			http.Redirect(w, r, strings.Replace(far.URL, "127.0.0.1", "localhost", 1)+"/bytes", http.StatusFound)
			return
		}
		inner.ServeHTTP(w, r)
	})
	o := options(h)
	o.Token = h.token
	if _, err := Model(context.Background(), m, o); err != nil || leaked {
		t.Errorf("leaked %v, %v", leaked, err)
	}
}

func FuzzChoose(f *testing.F) {
	f.Add([]byte(`[{"type":"file","path":"model.safetensors","size":3,"oid":"`+commit+`"}]`), []byte(`{"weight_map":{"a":"model.safetensors"}}`))
	f.Add([]byte(`[{"type":"file","path":"../x.safetensors","size":-1}]`), []byte(`{`))
	f.Fuzz(func(t *testing.T, list, index []byte) {
		var entries []entry
		if json.Unmarshal(list, &entries) != nil {
			return
		}
		chosen, err := choose(entries, func(entry) ([]byte, error) { return index, nil })
		if err != nil {
			return
		}
		for _, e := range chosen {
			if strings.ContainsAny(e.Path, "/\\\x00") || e.Path == ".." || e.Size < 0 {
				t.Fatalf("chose %q of %d bytes", e.Path, e.Size)
			}
		}
	})
}
