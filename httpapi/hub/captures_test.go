package hub

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"smolgym/model/golden"
)

// capture is a request that a client sent and the answer that satisfied it.
type capture struct {
	Client  string
	Request struct {
		Method, Path string
		Headers      map[string]string
		Body         any
	}
	Response struct {
		Status  int
		Headers map[string]string
		Body    any
	}
}

// captured reads the recordings.
func captured(t *testing.T) map[string]json.RawMessage {
	t.Helper()
	out := map[string]json.RawMessage{}
	if err := json.Unmarshal(golden.Gunzip(t, filepath.Join("..", "..", "testdata", "hub", "captures.json.gz")), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// decided are recordings that are answered in another way here, and why.
var decided = map[string]string{
	"resolve_gated":            "nothing is gated here",
	"resolve_private_no_token": "nothing is private here",
	"resolve_no_revision":      "recorded against a repository that isn't there: covered by resolve_no_repo",
	"validate_yaml":            "its body was not recorded whole: TestWriting",
	"xet_telemetry":            "belongs to the routes of /v1, where it is 404 like all that is unknown",
	"lfs_multipart_complete":   "the addresses in it are made up by the server: TestMultipart",
	"lfs_put":                  "the address in it is made up by the server: rig.putLarge",
	"lfs_put_part":             "the address in it is made up by the server: TestMultipart",
	"xet_shard_v1":             "its bytes were not recorded: TestXetSample",
	"xet_xorb":                 "its bytes were not recorded: TestXetSample",
}

// speaking are the headers that clients read.
var speaking = []string{"ETag", "X-Repo-Commit", "Accept-Ranges", "Content-Range", "X-Linked-ETag", "X-Linked-Size", "X-Error-Message",
	"X-Xet-Cas-Url", "X-Xet-Access-Token", "X-Xet-Token-Expiration"}

// TestCaptures sends every recorded request, in an order that makes sense, and compares status, headers that clients
// read, and the form of the body with what satisfied them.
func TestCaptures(t *testing.T) {
	onEveryBox(t, Options{Allow: func(token string) bool { return token != "hf_bad" }, MultipartBytes: 5 << 20}, func(r *rig) {
		all := captured(r.t)
		model, x := noise(1, 29122152), noise(2, 2<<20)
		for name, raw := range all {
			// The recorded files' contents aren't here: others stand for them.
			text := string(raw)
			for old, now := range map[string]string{
				"c9bbede99381c1b2c8d9560accf9fcea61d1628305590c8b65833543648080d7": hexSum(model),
				"26b7810946cabbbdb0700f4a0e1d830392a25a15e92377427000d59b02119d6e": hexSum(x)} {
				text = strings.ReplaceAll(text, old, now)
			}
			all[name] = json.RawMessage(text)
		}
		replay := func(names ...string) {
			for _, n := range names {
				r.replay(n, all[n])
				delete(all, n)
			}
		}
		replay("agent_harnesses", "whoami", "whoami_bad_token", "create_repo_no_token", "create_repo", "create_repo_exists")
		replay("commit_regular", "preupload_regular", "preupload_lfs", "preupload_no_token", "lfs_batch_basic", "lfs_batch_multipart", "lfs_batch_offers_xet")
		r.putLarge("me/tiny", x)
		replay("lfs_verify", "commit_lfs")
		r.putLarge("me/tiny", model)
		replay("lfs_batch_already_there")
		r.put("me/tiny", map[string][]byte{".gitattributes": []byte("a"), "chat_template.jinja": []byte("b"), "generation_config.json": []byte("{}"),
			"model.safetensors": model, "tokenizer.json": []byte("{} "), "tokenizer_config.json": []byte("{}  ")})
		replay("model_info", "model_info_blobs", "model_info_no_repo", "revision_info", "revision_info_expand_xet", "tree_recursive", "tree_chat_templates",
			"paths_info", "refs", "commits", "auth_check", "list_models", "resolve_head", "resolve_head_lfs", "resolve_get", "resolve_get_range",
			"resolve_get_range_safetensors_header", "resolve_no_entry", "resolve_no_repo", "resolve_bad_token", "xet_write_token")
		var t struct{ CasURL, AccessToken string }
		r.want(200, &t, "GET", "/api/models/me/tiny/xet-write-token/main", nil)
		for _, n := range []string{"xet_chunk_dedup", "xet_xorb_grant", "xet_shard_v2"} {
			c := string(all[n])
			space := strings.TrimPrefix(t.CasURL, "http://box")
			c = strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(c, "/xet/737a3fdf", space), "/xet/b9a69aa1", space), "Bearer xet", "Bearer "+t.AccessToken)
			all[n] = json.RawMessage(c)
		}
		replay("xet_chunk_dedup", "xet_xorb_grant", "xet_shard_v2", "commit_delete")
		r.create("me/cli")
		replay("revision_info_branch_missing", "branch_create")
		r.put("me/cli", map[string][]byte{"sub dir/c+fg é.json": []byte("{}")})
		replay("resolve_odd_name", "delete_repo", "create_repo_old")
		for n := range all {
			if decided[n] == "" {
				r.t.Errorf("recording %s was not replayed", n)
			}
		}
	})
}

// replay sends one recording.
func (r *rig) replay(name string, raw json.RawMessage) {
	r.t.Helper()
	var c capture
	if err := json.Unmarshal(raw, &c); err != nil {
		r.t.Fatalf("%s: %v", name, err)
	}
	headers := []string{"Authorization", ""}
	for k, v := range c.Request.Headers {
		if k != "content-length" {
			headers = append(headers, k, v)
		}
	}
	w := r.send(c.Request.Method, c.Request.Path, c.Request.Body, headers...)
	if w.Code != c.Response.Status {
		r.t.Fatalf("%s: status %d, want %d: %.400s", name, w.Code, c.Response.Status, w.Body)
	}
	if code := c.Response.Headers["X-Error-Code"]; code != "" && w.Header().Get("X-Error-Code") != code {
		r.t.Errorf("%s: X-Error-Code %q, want %q", name, w.Header().Get("X-Error-Code"), code)
	}
	for _, k := range speaking {
		if c.Response.Headers[k] != "" && w.Header().Get(k) == "" {
			r.t.Errorf("%s: no %s", name, k)
		}
	}
	if c.Response.Body == nil || c.Request.Method == "HEAD" {
		return
	}
	if s, ok := c.Response.Body.(string); ok && strings.HasPrefix(s, "<") {
		return
	}
	var got any
	if err := json.Unmarshal(w.Body.Bytes(), &got); err != nil {
		r.t.Fatalf("%s: %v: %.200s", name, err, w.Body)
	}
	if diff := unlike(c.Response.Body, got, ""); diff != "" {
		r.t.Errorf("%s: %s\n got %.600s", name, diff, w.Body)
	}
}

// unlike says where a value lacks something that another has: a member, or its kind.
func unlike(want, got any, at string) string {
	switch w := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return at + ": not an object"
		}
		for k, v := range w {
			if _, ok := g[k]; !ok {
				return at + "." + k + " is missing"
			}
			if d := unlike(v, g[k], at+"."+k); d != "" {
				return d
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok {
			return at + ": not a list"
		}
		if len(w) > 0 && len(g) == 0 {
			return at + ": empty"
		}
		for i := range min(len(w), len(g)) {
			if d := unlike(w[i], g[i], fmt.Sprintf("%s[%d]", at, i)); d != "" {
				return d
			}
		}
	default:
		if fmt.Sprintf("%T", want) != fmt.Sprintf("%T", got) {
			return fmt.Sprintf("%s: %T, want %T", at, got, want)
		}
	}
	return ""
}

// sample is a recorded xorb, its shard and what they give.
type sample struct {
	Name  string `json:"xorb_name"`
	Xorb  []byte `json:"xorb_base64"`
	Shard []byte `json:"shard_base64"`
	Files []struct {
		Path, SHA256 string
		Size         int64
	}
}

func xetSample(t testing.TB) sample {
	t.Helper()
	var s sample
	raw, err := os.ReadFile(filepath.Join("testdata", "xet_sample.json"))
	if err == nil {
		err = json.Unmarshal(raw, &s)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestXetSample makes files of a recorded xorb with chunks of each kind.
func TestXetSample(t *testing.T) {
	onEveryBox(t, Options{}, func(r *rig) {
		s := xetSample(r.t)
		r.create("me/xet")
		var to struct{ CasURL, AccessToken string }
		r.want(200, &to, "GET", "/api/models/me/xet/xet-write-token/main", nil)
		cas, auth := strings.TrimPrefix(to.CasURL, "http://box"), []string{"Authorization", "Bearer " + to.AccessToken}
		r.want(400, nil, "POST", cas+"/v1/shards", s.Shard, auth...) // before its xorb
		r.want(401, nil, "POST", cas+"/v1/xorbs/default/"+s.Name, s.Xorb)
		r.want(400, nil, "POST", cas+"/v1/xorbs/default/"+s.Name, s.Xorb[:len(s.Xorb)-1], auth...)
		r.want(400, nil, "POST", cas+"/v1/xorbs/default/..%2f..%2fx", s.Xorb, auth...)
		r.want(200, nil, "POST", cas+"/v1/xorbs/default/"+s.Name, s.Xorb, auth...)
		r.want(200, nil, "POST", cas+"/v1/xorbs/default/"+s.Name, s.Xorb, auth...)
		r.want(200, nil, "POST", cas+"/v1/shards", s.Shard, auth...)
		lines := []any{line("header", map[string]string{"summary": "x"})}
		for _, f := range s.Files {
			lines = append(lines, line("lfsFile", map[string]any{"path": f.Path, "algo": "sha256", "oid": f.SHA256, "size": f.Size}))
		}
		r.commitLines("me/xet", "main", lines...)
		for _, f := range s.Files {
			w := r.want(200, nil, "GET", "/me/xet/resolve/main/"+f.Path, nil)
			if got := hexSum(w.Body.Bytes()); got != f.SHA256 || int64(w.Body.Len()) != f.Size {
				r.t.Errorf("%s: %d bytes with sha256 %s, want %d and %s", f.Path, w.Body.Len(), got, f.Size, f.SHA256)
			}
		}
		// A shard that says another sha256 than its chunks have.
		wrong := []byte(strings.Replace(string(s.Shard), string(sumBytes(s.Files[0].SHA256)), string(sumBytes(hexSum([]byte("x")))), 1))
		r.want(400, nil, "POST", cas+"/v1/shards", wrong, auth...)
	})
}

// sumBytes is a hash as shards hold it.
func sumBytes(sum string) []byte {
	var out []byte
	for i := 0; i < 64; i += 16 {
		var v uint64
		_, _ = fmt.Sscanf(sum[i:i+16], "%x", &v)
		out = le.AppendUint64(out, v)
	}
	return out
}

func FuzzXet(f *testing.F) {
	s := xetSample(f)
	f.Add(s.Xorb, s.Shard)
	f.Add([]byte("\x00\x01\x00\x00\x01\xff\xff\x03x"), []byte("HFRepoMetaData"))
	f.Fuzz(func(t *testing.T, xorb, shard []byte) {
		chunks, err := indexXorb(strings.NewReader(string(xorb)))
		if err == nil {
			for _, c := range chunks {
				if c.offset+int64(c.packed) > int64(len(xorb)) {
					t.Fatalf("chunk %+v ends beyond %d bytes", c, len(xorb))
				}
				if d, err := c.unpack(xorb[c.offset : c.offset+int64(c.packed)]); err == nil && len(d) != c.unpacked {
					t.Fatalf("chunk %+v gives %d bytes", c, len(d))
				}
			}
		}
		files, err := readShard(shard)
		if err == nil {
			n := 0
			for _, f := range files {
				n += len(f.segments)
			}
			if n*48 > len(shard) {
				t.Fatalf("%d segments in %d bytes", n, len(shard))
			}
		}
	})
}

func FuzzCommit(f *testing.F) {
	f.Add([]byte(`{"key":"header","value":{"summary":"x"}}` + "\n" + `{"key":"file","value":{"path":"a","encoding":"base64","content":"eA=="}}`))
	f.Add([]byte(`{"key":"lfsFile","value":{"path":"a/../b","oid":"x"}}`))
	f.Add([]byte(`{"key":"deletedFolder","value":{"path":"../"}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		h := New(newMemory(), Options{})
		req, err := h.readCommit(strings.NewReader(string(body)))
		if err != nil {
			return
		}
		for _, c := range req.changes {
			p := strings.TrimSuffix(c.remove, "/")
			if c.add != nil {
				p = c.add.Path
			}
			if checkPath(p) != nil {
				t.Fatalf("path %q was taken", p)
			}
		}
		files, err := apply(nil, req.changes)
		if err == nil && len(files) > len(req.changes) {
			t.Fatal("more files than changes")
		}
	})
}
