package hub

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

// FuzzRequest: no path, query or body makes the handler panic, or write under a name that it shouldn't.
func FuzzRequest(f *testing.F) {
	for _, p := range []string{"/me/x/resolve/main/a", "/api/models/me/x/tree/main/a%2fb?recursive=1&cursor=1&limit=0", "/api/models/me/x/commit/main", "/me/x.git/info/lfs/objects/batch",
		"/api/repos/create", "/xet/a/v1/shards", "/runs/a.0.w.b/resolve/adapter/config.json", "/me/x.git/info/lfs/objects/a/1-2-3/part/9", "/api/models/me/x/preupload/main",
		"/api/models/me/x/branch/a", "/api/models/me/x/paths-info/main", "/..%2f/%00/resolve/main/x", "/api/models?search=x&cursor=-1"} {
		f.Add(uint8(len(p)), p, `{"name":"x","organization":"me","files":[{"path":"../x","size":-1}],"objects":[{"oid":"x","size":-1}],"operation":"upload"}`)
	}
	f.Fuzz(func(t *testing.T, method uint8, path, body string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") {
			return
		}
		box := newMemory()
		box.scratch = t.TempDir()
		h := New(box, Options{Export: &exports{}, Log: quiet})
		r := &rig{t, h, box}
		r.create("me/x")
		r.put("me/x", map[string][]byte{"a": []byte("a")})
		req := httptest.NewRequest([]string{"GET", "POST", "PUT", "HEAD", "DELETE"}[method%5], "http://box/", strings.NewReader(body))
		req.URL.Path, req.URL.RawPath, req.URL.RawQuery = u.Path, u.RawPath, u.RawQuery
		req.Header.Set("Authorization", "Bearer "+testToken)
		if !Claims(req) {
			return
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		if w.Code < 200 || w.Code >= http.StatusInternalServerError {
			t.Errorf("status %d: %s", w.Code, w.Body)
		}
		for name := range box.docs {
			if checkNewRepo(name) != nil {
				t.Errorf("repository %q was made", name)
			}
		}
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
}
