package hub

import (
	"bytes"
	"context"
	"crypto/sha1"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"smolgym/appliance"
)

func gitSum(b []byte) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(b)), b...))
	return hex.EncodeToString(sum[:])
}

func TestReading(t *testing.T) {
	onEveryBox(t, Options{TreePage: 3}, func(r *rig) {
		big := noise(3, 3<<20)
		files := map[string][]byte{"config.json": []byte(`{"a": 1}`), "empty.txt": {}, "big.npy": big, "sub/a.txt": []byte("a"), "sub/deep/b.txt": []byte("b"), "sub/deep/c.txt": []byte("c")}
		r.create("me/read")
		id := r.put("me/read", files)
		for path, raw := range files {
			want := gitSum(raw)
			if len(raw) > largeBytes {
				want = hexSum(raw)
			}
			for _, rev := range []string{"main", id, "refs%2Fheads%2Fmain"} {
				head := r.want(200, nil, "HEAD", "/me/read/resolve/"+rev+"/"+path, nil)
				got := r.want(200, nil, "GET", "/me/read/resolve/"+rev+"/"+path, nil)
				if !bytes.Equal(got.Body.Bytes(), raw) || head.Body.Len() != 0 {
					r.t.Errorf("%s at %s: other bytes", path, rev)
				}
				for _, w := range []*httptest.ResponseRecorder{head, got} {
					for k, v := range map[string]string{"ETag": `"` + want + `"`, "X-Repo-Commit": id, "Content-Length": fmt.Sprint(len(raw)), "Accept-Ranges": "bytes"} {
						if w.Header().Get(k) != v {
							r.t.Errorf("%s: %s is %q, want %q", path, k, w.Header().Get(k), v)
						}
					}
				}
			}
		}
		for span, want := range map[string][]byte{"bytes=0-9": big[:10], "bytes=1048575-1048577": big[1<<20-1 : 1<<20+2], "bytes=3000000-": big[3000000:], "bytes=-7": big[len(big)-7:]} {
			w := r.want(206, nil, "GET", "/me/read/resolve/main/big.npy", nil, "Range", span)
			if !bytes.Equal(w.Body.Bytes(), want) {
				r.t.Errorf("%s: %d bytes, want %d", span, w.Body.Len(), len(want))
			}
		}
		r.want(416, nil, "GET", "/me/read/resolve/main/big.npy", nil, "Range", "bytes=4000000-")
		r.want(304, nil, "GET", "/me/read/resolve/main/big.npy", nil, "If-None-Match", `"`+hexSum(big)+`"`)
		if w := r.want(404, nil, "GET", "/me/read/resolve/main/nope", nil); w.Header().Get("X-Error-Code") != codeEntry || w.Header().Get("X-Repo-Commit") != id {
			r.t.Errorf("absent file: %v", w.Header())
		}
		if w := r.want(404, nil, "GET", "/me/read/resolve/other/config.json", nil); w.Header().Get("X-Error-Code") != codeRevision {
			r.t.Errorf("absent revision: %v", w.Header())
		}
		for _, p := range []string{"/me/nope/resolve/main/x", "/api/models/me/nope", "/api/models/me/nope/tree/main", "/tiny/resolve/main/config.json", "/v1/x/resolve/main/y", "/api/models/tiny", "/api/datasets/a/b"} {
			if w := r.want(404, nil, "GET", p, nil); w.Header().Get("X-Error-Code") != codeRepo {
				r.t.Errorf("%s: X-Error-Code %q", p, w.Header().Get("X-Error-Code"))
			}
		}
		r.pages("/api/models/me/read/tree/main?recursive=true", []string{"big.npy", "config.json", "empty.txt", "sub", "sub/a.txt", "sub/deep", "sub/deep/b.txt", "sub/deep/c.txt"})
		r.pages("/api/models/me/read/tree/main", []string{"big.npy", "config.json", "empty.txt", "sub"})
		r.pages("/api/models/me/read/tree/main/sub?recursive=false", []string{"sub/a.txt", "sub/deep"})
		r.want(400, nil, "GET", "/api/models/me/read/tree/main?cursor=-1", nil)
		if w := r.want(404, nil, "GET", "/api/models/me/read/tree/main/additional_chat_templates?recursive=false", nil); w.Header().Get("X-Error-Code") != codeEntry {
			r.t.Error("no code for a folder that isn't there")
		}
		r.want(403, nil, "GET", "/api/models/me/read/discussions?p=0", nil)
	})
}

// pages reads a list to its end.
func (r *rig) pages(path string, want []string) {
	r.t.Helper()
	var got []string
	for n := 0; path != ""; n++ {
		var list []entry
		w := r.want(200, &list, "GET", path, nil)
		if len(list) > 3 || n > 5 {
			r.t.Fatalf("%s: %d entries on page %d", path, len(list), n)
		}
		for _, e := range list {
			got = append(got, e.Path)
		}
		link := w.Header().Get("Link")
		path, _, _ = strings.Cut(strings.TrimPrefix(link, "<http://box"), ">")
		if link != "" && !strings.HasSuffix(link, `; rel="next"`) {
			r.t.Fatalf("link %q", link)
		}
	}
	if !slices.Equal(got, want) {
		r.t.Errorf("listed %q, want %q", got, want)
	}
}

func TestWriting(t *testing.T) {
	onEveryBox(t, Options{}, func(r *rig) {
		r.create("me/w")
		first := r.info("me/w")
		if first.SHA == "" || first.Box.Model || !strings.Contains(first.Box.Missing, "config.json") {
			r.t.Errorf("fresh repository: %+v", first)
		}
		id := r.put("me/w", map[string][]byte{"a.txt": []byte("a"), "d/b.txt": []byte("b")})
		if again := r.put("me/w", map[string][]byte{"a.txt": []byte("a")}); again != id {
			r.t.Errorf("an empty commit made %s of %s", again, id)
		}
		commit := func(status int, lines ...any) {
			r.t.Helper()
			r.want(status, nil, "POST", "/api/models/me/w/commit/main", ndjson(lines...))
		}
		head := line("header", map[string]string{"summary": "x"})
		commit(412, line("header", map[string]string{"summary": "x", "parentCommit": first.SHA}), line("deletedFile", map[string]string{"path": "a.txt"}))
		for _, bad := range []any{
			line("file", map[string]string{"path": "../x", "encoding": "base64", "content": "eA=="}),
			line("file", map[string]string{"path": "x", "encoding": "base64", "content": "?"}),
			line("file", map[string]string{"path": "x", "encoding": "rot13", "content": "x"}),
			line("file", map[string]string{"path": "pytorch_model.bin", "encoding": "base64", "content": "eA=="}),
			line("file", map[string]string{"path": "a.txt/x", "encoding": "base64", "content": "eA=="}),
			line("lfsFile", map[string]string{"path": "x", "algo": "sha256", "oid": hexSum([]byte("never sent"))}),
			line("lfsFile", map[string]string{"path": "x", "algo": "sha1", "oid": hexSum([]byte("x"))}),
			line("lfsFile", map[string]string{"path": "x", "oid": "../../x"}),
			line("deletedFile", map[string]string{"path": "nope"}),
			line("copyFile", map[string]string{"path": "x"}),
			"not a line",
		} {
			commit(400, head, bad)
		}
		r.want(400, nil, "POST", "/api/models/me/w/commit/main", "")
		r.want(400, nil, "POST", "/api/models/me/w/commit/main?create_pr=1", ndjson(head))
		r.want(404, nil, "POST", "/api/models/me/w/commit/nope", ndjson(head))
		r.want(404, nil, "POST", "/api/models/me/nope/commit/main", ndjson(head))
		if now := r.info("me/w").SHA; now != id {
			r.t.Errorf("refused commits moved the head to %s", now)
		}
		commit(200, head, line("deletedFolder", map[string]string{"path": "d/"}), line("file", map[string]string{"path": "c", "encoding": "utf-8", "content": "ü"}))
		r.want(200, nil, "GET", "/me/w/resolve/"+id+"/d/b.txt", nil) // a download that runs pins the old one
		r.want(404, nil, "GET", "/me/w/resolve/main/d/b.txt", nil)
		if c := r.want(200, nil, "GET", "/me/w/resolve/main/c", nil).Body.String(); c != "ü" {
			r.t.Errorf("c is %q", c)
		}
		r.want(200, nil, "POST", "/api/models/me/w/branch/old", map[string]string{"startingPoint": id})
		r.want(409, nil, "POST", "/api/models/me/w/branch/old", "{}")
		r.want(400, nil, "POST", "/api/models/me/w/branch/..", "{}")
		r.want(200, nil, "GET", "/me/w/resolve/old/d/b.txt", nil)
		r.want(200, nil, "POST", "/api/validate-yaml", map[string]string{"repoType": "model", "content": "---\nx: y\n---\n"})
		for _, org := range []string{"runs", "rack", "V1", "api", "datasets", "a/b", "..", "a:b", "a--b"} {
			r.want(400, nil, "POST", "/api/repos/create", map[string]string{"organization": org, "name": "x"})
		}
		r.want(400, nil, "POST", "/api/repos/create", map[string]string{"organization": "me", "name": "x", "type": "dataset"})
		r.want(200, nil, "DELETE", "/api/repos/delete", map[string]string{"organization": "me", "name": "w"})
		r.want(404, nil, "DELETE", "/api/repos/delete", map[string]string{"organization": "me", "name": "w"})
		r.want(404, nil, "GET", "/api/models/me/w", nil)
	})
}

// TestOldCommits: a commit that nobody can be downloading any more goes, and its content with it.
func TestOldCommits(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	onEveryBox(t, Options{Now: func() time.Time { return now }}, func(r *rig) {
		r.create("me/old")
		one := r.put("me/old", map[string][]byte{"a": []byte("1")})
		two := r.put("me/old", map[string][]byte{"a": []byte("2")})
		r.want(200, nil, "GET", "/me/old/resolve/"+one+"/a", nil)
		now = now.Add(keepFor + time.Minute)
		three := r.put("me/old", map[string][]byte{"a": []byte("3")})
		for id, status := range map[string]int{one: 404, two: 404, three: 200} {
			r.want(status, nil, "GET", "/me/old/resolve/"+id+"/a", nil)
		}
	})
}

func TestMultipart(t *testing.T) {
	const part = 2 << 20
	onEveryBox(t, Options{MultipartBytes: part}, func(r *rig) {
		raw := noise(5, 5<<20)
		r.create("me/parts")
		var batch struct {
			Transfer string
			Objects  []struct {
				Actions map[string]struct {
					Href   string
					Header map[string]string
				}
			}
		}
		ask := func() {
			r.t.Helper()
			batch.Objects = nil
			r.want(200, &batch, "POST", "/me/parts.git/info/lfs/objects/batch", map[string]any{"operation": "upload", "transfers": []string{"basic", "multipart"},
				"objects": []any{map[string]any{"oid": hexSum(raw), "size": len(raw)}}})
		}
		ask()
		up := batch.Objects[0].Actions["upload"]
		if batch.Transfer != "multipart" || up.Header["chunk_size"] != fmt.Sprint(part) || len(up.Header) != 4 {
			r.t.Fatalf("batch: %+v", batch)
		}
		put := func(status int, n int, body []byte) {
			r.t.Helper()
			r.want(status, nil, "PUT", strings.TrimPrefix(up.Header[fmt.Sprint(n)], "http://box"), body, "Authorization", "")
		}
		complete := strings.TrimPrefix(up.Href, "http://box")
		put(200, 1, raw[:part])
		put(200, 1, raw[:part]) // sent again
		r.want(409, nil, "PUT", strings.TrimPrefix(up.Header["3"], "http://box"), raw[2*part:], "Authorization", "")
		put(400, 2, raw[part:part+10])
		r.want(400, nil, "POST", complete, "{}")
		put(200, 2, raw[part:2*part])
		put(200, 3, raw[2*part:])
		r.want(200, nil, "POST", complete, "{}")
		r.want(200, nil, "POST", "/me/parts.git/info/lfs/verify", map[string]any{"oid": hexSum(raw), "size": len(raw)})
		if ask(); len(batch.Objects[0].Actions) != 0 {
			r.t.Errorf("asked for again: %+v", batch)
		}
		r.want(403, nil, "PUT", strings.Replace(strings.TrimPrefix(up.Header["1"], "http://box"), hexSum(raw), hexSum([]byte("x")), 1), raw[:part])
	})
}

// TestCutUpload: what came before the connection broke isn't lost, and what is sent twice isn't doubled.
func TestCutUpload(t *testing.T) {
	onEveryBox(t, Options{}, func(r *rig) {
		raw := noise(6, 3<<20)
		r.create("me/cut")
		href := "/me/cut.git/info/lfs/objects/" + hexSum(raw) + "/" + r.h.permit(hexSum(raw), int64(len(raw)), time.Now().Add(time.Hour).Unix())
		req := httptest.NewRequest("PUT", "http://box"+href, io.MultiReader(bytes.NewReader(raw[:2<<20]), broken{}))
		req.ContentLength = int64(len(raw))
		w := httptest.NewRecorder()
		r.h.ServeHTTP(w, req)
		if w.Code != 400 {
			r.t.Fatalf("broken upload: %d %s", w.Code, w.Body)
		}
		if have, size, err := r.box.ContentState(hexSum(raw)); err != nil || have == 0 || have >= size {
			r.t.Errorf("after the break %d of %d bytes: %v", have, size, err)
		}
		r.want(200, nil, "PUT", href, raw)
		r.put("me/cut", map[string][]byte{"x": raw})
		if w := r.want(200, nil, "GET", "/me/cut/resolve/main/x", nil); !bytes.Equal(w.Body.Bytes(), raw) {
			r.t.Error("other bytes")
		}
		old := "/me/cut.git/info/lfs/objects/" + hexSum(raw) + "/" + r.h.permit(hexSum(raw), int64(len(raw)), time.Now().Add(-time.Hour).Unix())
		r.want(403, nil, "PUT", old, raw)
	})
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("connection reset") }

func TestTokens(t *testing.T) {
	onEveryBox(t, Options{Allow: func(token string) bool { return token == testToken }}, func(r *rig) {
		r.create("me/x")
		for _, auth := range []string{"", "Bearer tml-other", "Basic eA=="} {
			for _, q := range [][2]string{{"GET", "/me/x/resolve/main/a"}, {"GET", "/api/models/me/x"}, {"POST", "/api/repos/create"}, {"POST", "/api/models/me/x/commit/main"},
				{"POST", "/me/x.git/info/lfs/objects/batch"}, {"GET", "/api/models/me/x/xet-write-token/main"}, {"POST", "/xet/a/v1/shards"}, {"GET", "/api/whoami-v2"}} {
				w := r.want(401, nil, q[0], q[1], nil, "Authorization", auth)
				if auth == "Bearer tml-other" && q[1][1] != 'x' && !strings.Contains(w.Header().Get("X-Error-Message"), "Invalid credentials in Authorization header") {
					r.t.Errorf("%s: X-Error-Message %q", q[1], w.Header().Get("X-Error-Message"))
				}
			}
		}
	})
}

func TestVariants(t *testing.T) {
	box := newMemory()
	r := &rig{t, New(box, Options{Log: quiet}), box}
	raw := noise(9, 4096)
	var files []appliance.ManifestFile
	for path, b := range map[string][]byte{"config.json": []byte("{}"), "tokenizer.json": []byte("{} "), "model.safetensors": raw} {
		if _, err := box.PutContent(hexSum(b), int64(len(b)), 0, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
		f, err := appliance.NewManifestFile(path, int64(len(b)), hexSum(b))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	for _, name := range []string{"known/base:one", "known/base:two"} {
		if err := box.SetModel(name, files); err != nil {
			t.Fatal(err)
		}
	}
	r.want(200, nil, "GET", "/known/base/resolve/main/tokenizer.json", nil)
	r.want(404, nil, "GET", "/known/base/resolve/main/chat_template.jinja", nil)
	if w := r.want(404, nil, "HEAD", "/known/base/resolve/main/model.safetensors", nil); w.Header().Get("X-Error-Code") != codeRepo {
		t.Errorf("weights of a variant: %v", w.Header())
	}
	m := r.info("known/base")
	for _, s := range m.Siblings {
		if isWeights(s.Name) {
			t.Errorf("%s is listed", s.Name)
		}
	}
	r.want(200, nil, "GET", "/known/base%3Aone/resolve/main/model.safetensors", nil)
	r.create("known/base") // it isn't taken
	if m := r.info("known/base"); len(m.Siblings) != 0 {
		t.Errorf("a repository of its own has %v", m.Siblings)
	}
}

// TestUpstream: what isn't here is asked for, without our token; a dead upstream is asked once.
func TestUpstream(t *testing.T) {
	var asked []string
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.EscapedPath())
		if r.Header.Get("Authorization") != "" {
			t.Error("our token was sent upstream")
		}
		switch r.URL.Path {
		case "/far/a/resolve/main/small":
			w.Header().Set("ETag", `"e"`)
			w.Header().Set("X-Repo-Commit", strings.Repeat("a", 40))
			w.Header().Set("Content-Length", "12")
		case "/far/a/resolve/main/large":
			w.Header().Set("X-Linked-Size", "123456")
			w.Header().Set("X-Linked-ETag", `"l"`)
			w.Header().Set("X-Xet-Hash", "never")
			w.Header().Set("X-Repo-Commit", strings.Repeat("a", 40))
			http.Redirect(w, r, "http://elsewhere.invalid/bytes", http.StatusFound)
		case "/far/renamed/resolve/main/small":
			http.Redirect(w, r, "/far/a/resolve/main/small", http.StatusTemporaryRedirect)
		case "/far/gated/resolve/main/x":
			w.Header().Set("X-Error-Code", "GatedRepo")
			w.WriteHeader(401)
		default:
			w.Header().Set("X-Error-Code", codeRepo)
			w.WriteHeader(404)
		}
	}))
	defer up.Close()
	now := time.Unix(2e9, 0)
	box := newMemory()
	r := &rig{t, New(box, Options{Log: quiet, Upstream: up.URL, Now: func() time.Time { return now }}), box}
	for path, want := range map[string]map[string]string{
		"/far/a/resolve/main/small":       {"ETag": `"e"`, "Content-Length": "12", "X-Repo-Commit": strings.Repeat("a", 40)},
		"/far/renamed/resolve/main/small": {"ETag": `"e"`, "Content-Length": "12", "X-Repo-Commit": strings.Repeat("a", 40)},
		"/far/a/resolve/main/large":       {"X-Linked-Etag": `"l"`, "Content-Length": "123456", "X-Linked-Size": "123456", "X-Xet-Hash": "", "Location": ""},
	} {
		w := r.want(200, nil, "HEAD", path, nil)
		for k, v := range want {
			if w.Header().Get(k) != v {
				t.Errorf("%s: %s is %q, want %q", path, k, w.Header().Get(k), v)
			}
		}
	}
	if w := r.want(401, nil, "HEAD", "/far/gated/resolve/main/x", nil); w.Header().Get("X-Error-Code") != "GatedRepo" {
		t.Errorf("gated: %v", w.Header())
	}
	for _, p := range []string{"/far/a/resolve/main/large?download=true", "/datasets/far/d/resolve/main/x", "/api/datasets/far/d", "/api/models/far/a/tree/main", "/gpt/resolve/main/x"} {
		if w := r.want(307, nil, "GET", p, nil); w.Header().Get("Location") != up.URL+p {
			t.Errorf("%s leads to %q", p, w.Header().Get("Location"))
		}
	}
	r.want(307, nil, "POST", "/api/datasets/far/d/paths-info/main", "paths=x")
	r.want(404, nil, "POST", "/api/datasets/far/d/commit/main", "secret")
	r.want(404, nil, "HEAD", "/far/a/resolve/main/small", nil, viaHeader, "1")

	up.Close()
	now = now.Add(onlineTime)
	asked = nil
	for range 3 {
		w := r.want(404, nil, "GET", "/far/a/resolve/main/small", nil)
		if w.Header().Get("X-Error-Code") != codeRepo {
			t.Errorf("offline: %v", w.Header())
		}
	}
	if len(asked) != 0 {
		t.Errorf("asked %q", asked)
	}
	if !r.h.up.offline() {
		t.Error("the failure was forgotten")
	}
	now = now.Add(offlineTime)
	if r.h.up.offline() {
		t.Error("the failure is held for ever")
	}
}

func TestCheckpointNames(t *testing.T) {
	const session = "0b9e5c4e-7c50-4d32-a2a5-9f1e6a7d3c21"
	run := session + ":train:3"
	names := []string{"final", "step_0010", "a.b", "x-y", "h-z", "a--b", "-a", "a.", "v1.git", strings.Repeat("n", 60), strings.Repeat("-", 255)}
	find := func(of, kind, hashed string) string {
		for _, n := range names {
			if hashedName(n) == hashed {
				return n
			}
		}
		return ""
	}
	seen := map[string]bool{}
	for _, kind := range []string{weightsKind, samplerKind} {
		for _, n := range names {
			path := "tinker://" + run + "/" + kind + "/" + n
			repo, ok := CheckpointRepo(path)
			if !ok || checkRepo(repo) != nil || seen[repo] {
				t.Errorf("%s: repository %q, %v", path, repo, ok)
				continue
			}
			seen[repo] = true
			if back, ok := checkpointPath(repo, find); !ok || back != path {
				t.Errorf("%s: %q leads to %q", path, repo, back)
			}
		}
	}
	if repo, _ := CheckpointRepo("tinker://" + run + "/weights/final"); repo != "runs/"+session+".3.w.final" {
		t.Errorf("repository %q", repo)
	}
	for _, p := range []string{"", "tinker://x", "tinker://a/b/c", "tinker://a:train:0/other/c", "tinker://a:train:0/weights/"} {
		if repo, ok := CheckpointRepo(p); ok {
			t.Errorf("%q: repository %q", p, repo)
		}
	}
	for _, r := range []string{"runs/x", "runs/a.b.w.c", "runs/a.1.q.c", "runs/a.1.w.x-!!", "runs/a.1.w.x-mzuw4ylm", "me/a.1.w.c"} {
		if path, ok := checkpointPath(r, find); ok {
			t.Errorf("%q leads to %q", r, path)
		}
	}
}

// exports is an Exporter of one checkpoint.
type exports struct{ made int }

func (e *exports) Export(_ context.Context, path string, adapter bool) (Export, error) {
	if path != "tinker://s:train:0/weights/final" {
		return Export{}, notHere("checkpoint")
	}
	x := Export{Created: time.Unix(1e9, 0), Key: fmt.Sprint("key ", adapter)}
	for name, raw := range exported(adapter) {
		x.Files = append(x.Files, ExportFile{name, int64(len(raw)), func(w io.Writer) error {
			e.made++
			_, err := io.Copy(w, bytes.NewReader(raw))
			return err
		}})
	}
	return x, nil
}

func exported(adapter bool) map[string][]byte {
	if adapter {
		return map[string][]byte{"adapter_config.json": []byte("{}"), "adapter_model.safetensors": noise(1, 1000)}
	}
	return map[string][]byte{"config.json": []byte("{}"), "model.safetensors": noise(2, 3<<20)}
}

// TestExports: a checkpoint's two forms, made on the fly, ranges too.
func TestExports(t *testing.T) {
	box, e := newMemory(), &exports{}
	r := &rig{t, New(box, Options{Export: e, Log: quiet}), box}
	repo := "runs/s.0.w.final"
	for rev, adapter := range map[string]bool{"main": false, "adapter": true} {
		var m modelInfo
		r.want(200, &m, "GET", "/api/models/"+repo+"/revision/"+rev+"?blobs=true", nil)
		if len(m.Siblings) != 2 || !commitID.MatchString(m.SHA) {
			t.Errorf("%s: %+v", rev, m)
		}
		for name, raw := range exported(adapter) {
			for _, at := range []string{rev, m.SHA} {
				w := r.want(200, nil, "GET", "/"+repo+"/resolve/"+at+"/"+name, nil)
				want := gitSum(raw)
				if len(raw) > largeBytes {
					want = hexSum(raw)
				}
				if !bytes.Equal(w.Body.Bytes(), raw) || w.Header().Get("ETag") != `"`+want+`"` {
					t.Errorf("%s at %s: %d bytes, ETag %s", name, at, w.Body.Len(), w.Header().Get("ETag"))
				}
			}
			w := r.want(206, nil, "GET", "/"+repo+"/resolve/"+rev+"/"+name, nil, "Range", "bytes=1-1")
			if w.Body.String() != string(raw[1:2]) {
				t.Errorf("%s: range gave %d bytes", name, w.Body.Len())
			}
		}
	}
	before := e.made
	r.want(200, nil, "HEAD", "/"+repo+"/resolve/main/model.safetensors", nil)
	if e.made != before {
		t.Error("a HEAD made the file again")
	}
	w := r.want(404, nil, "GET", "/runs/s.1.w.final/resolve/main/config.json", nil)
	if w.Header().Get("X-Error-Code") != codeRepo {
		t.Errorf("no checkpoint: %v", w.Header())
	}
	r.want(404, nil, "GET", "/"+repo+"/resolve/other/config.json", nil)
	r.want(400, nil, "POST", "/api/models/"+repo+"/commit/main", ndjson(line("header", map[string]string{"summary": "x"})))
}

func TestHostileNames(t *testing.T) {
	onEveryBox(t, Options{}, func(r *rig) {
		r.create("me/safe")
		r.put("me/safe", map[string][]byte{"config.json": []byte("{}")})
		for _, part := range []string{"..", ".", "%2e%2e", "..%2f..%2fetc%2fpasswd", "%00", "a%0ab", "%5c..%5c", "", "%c3%28", strings.Repeat("a", 4096), "%2fetc%2fpasswd", "config.json%2f.."} {
			for _, q := range [][2]string{{"GET", "/me/safe/resolve/main/" + part + "/x"}, {"GET", "/me/safe/resolve/" + part + "/config.json"}, {"GET", "/me/" + part + "/resolve/main/config.json"},
				{"GET", "/" + part + "/safe/resolve/main/config.json"}, {"GET", "/api/models/me/safe/tree/main/" + part + "/x"}, {"GET", "/api/models/me/" + part},
				{"POST", "/api/models/me/safe/branch/" + part}, {"PUT", "/me/safe.git/info/lfs/objects/" + part + "/1-2-3"}, {"POST", "/xet/" + part + "/v1/shards"}} {
				w := r.send(q[0], q[1], "{}")
				if w.Code < 400 || w.Code > 499 {
					r.t.Errorf("%s %.100s: status %d", q[0], q[1], w.Code)
				}
				var body struct{ Error string }
				if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || body.Error == "" || len(body.Error) > 2000 {
					r.t.Errorf("%s %.100s: %d bytes, %v", q[0], q[1], w.Body.Len(), err)
				}
			}
		}
	})
}

// TestModel: an upload that has everything is a model, one that lacks something says what.
func TestModel(t *testing.T) {
	box := newMemory()
	r := &rig{t, New(box, Options{Log: quiet}), box}
	r.create("me/m")
	index := []byte(`{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}`)
	r.put("me/m", map[string][]byte{"config.json": []byte("{}"), "model.safetensors.index.json": index})
	if m := r.info("me/m").Box; m.Model || !strings.Contains(m.Missing, ".safetensors") {
		t.Errorf("without weights: %+v", m)
	}
	r.put("me/m", map[string][]byte{"model-1.safetensors": noise(1, 100)})
	if m := r.info("me/m").Box; m.Model || !strings.Contains(m.Missing, "model-2.safetensors") {
		t.Errorf("with one shard: %+v", m)
	}
	if list, _ := box.Models(); len(list) != 0 {
		t.Errorf("offered as %v", list)
	}
	r.put("me/m", map[string][]byte{"model-2.safetensors": noise(2, 100)})
	whole := r.info("me/m")
	if !whole.Box.Model || whole.Box.Missing != "" {
		t.Errorf("complete: %+v", whole.Box)
	}
	// Spoilt again: the model stays as it was.
	r.put("me/m", map[string][]byte{"config.json": []byte("{")})
	if m := r.info("me/m").Box; m.Model || !strings.Contains(m.Missing, "config.json") {
		t.Errorf("spoilt: %+v", m)
	}
	if rec, err := box.Model("me/m"); err != nil || newCommit(modelFiles(&rec), "", "", time.Time{}).ID != whole.SHA {
		t.Errorf("the model moved: %v", err)
	}
	r.want(200, nil, "GET", "/me/m/resolve/"+whole.SHA+"/config.json", nil)
	r.create("me/gguf") // a file that has its configuration in it
	r.put("me/gguf", map[string][]byte{"model.gguf": noise(3, 100)})
	if m := r.info("me/gguf").Box; !m.Model {
		t.Errorf("gguf: %+v", m)
	}
	box.used["me/m"] = true
	head := line("header", map[string]string{"summary": "x"})
	other := line("file", map[string]string{"path": "config.json", "encoding": "utf-8", "content": `{"b":1}`})
	r.want(409, nil, "POST", "/api/models/me/m/commit/main", ndjson(head, other))
}

func TestLZ4(t *testing.T) {
	// Three literals and a match that overlaps itself, 4+15+5 long; five literals; then a stored block.
	frame := []byte{0x04, 0x22, 0x4d, 0x18, 0x60, 0x40, 0x82,
		13, 0, 0, 0, 0x3f, 'a', 'b', 'c', 3, 0, 5, 0x50, 'v', 'w', 'x', 'y', 'z',
		3, 0, 0, 0x80, '1', '2', '3',
		0, 0, 0, 0}
	want := strings.Repeat("abc", 9) + "vwxyz" + "123"
	got, err := lz4Frame(frame, 1000)
	if err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
	if _, err := lz4Frame(frame, len(want)-1); !errors.Is(err, errLZ4) {
		t.Errorf("beyond the limit: %v", err)
	}
	for n := range frame[:len(frame)-4] {
		if _, err := lz4Frame(frame[:n], 1000); !errors.Is(err, errLZ4) {
			t.Errorf("cut at %d: %v", n, err)
		}
	}
}
