package httpapi

import (
	"net/http"
	"strings"
	"testing"

	"smolgym/httpapi/wire"
)

// TestStoredKeys: a made key lets in by every door, its tokens too; a revoked one by none.
func TestStoredKeys(t *testing.T) {
	r := newRig(t, Options{})
	r.upload("tiny")
	var stranger wire.AuthTokenResponse
	r.must("POST", "/api/v1/auth/token", object{}, &stranger)
	var k, other Key
	r.must("POST", "/smolgym/v1/keys", KeyRequest{"laptop"}, &k)
	if !strings.HasPrefix(k.Key, "tml-") || len(k.Key) != 68 {
		t.Fatalf("key %+v", k)
	}
	r.must("POST", "/smolgym/v1/keys", KeyRequest{}, &other, "X-API-Key", k.Key)
	var token wire.AuthTokenResponse
	r.must("POST", "/api/v1/auth/token", object{}, &token, "X-API-Key", k.Key)
	doors := func(key string, want int) {
		t.Helper()
		for _, path := range []string{"/api/v1/get_server_capabilities", "/smolgym/v1/models"} {
			if w := r.do("GET", path, nil, "X-API-Key", key); w.Code != want {
				t.Errorf("%s with %.12s: %d, want %d", path, key, w.Code, want)
			}
		}
		if w := r.do("GET", "/local/tiny/resolve/main/config.json", nil, "Authorization", "Bearer "+key); (w.Code == http.StatusOK) != (want == http.StatusOK) {
			t.Errorf("hub with %.12s: %d", key, w.Code)
		}
	}
	doors(k.Key, http.StatusOK)
	doors(token.JWT, http.StatusOK)
	doors("tml-other", http.StatusUnauthorized)
	doors(stranger.JWT, http.StatusUnauthorized)
	r.must("DELETE", "/smolgym/v1/keys/"+k.ID, nil, nil, "X-API-Key", other.Key)
	doors(k.Key, http.StatusUnauthorized)
	doors(token.JWT, http.StatusUnauthorized)
	doors(other.Key, http.StatusOK)
	w := r.do("POST", "/smolgym/v1/keys", KeyRequest{"a\nb"}, "X-API-Key", other.Key)
	scenario{status: http.StatusBadRequest, has: []string{"key name"}}.check(t, w)
}

// TestNeedKey: a server that needs keys lets nobody in while there is none.
func TestNeedKey(t *testing.T) {
	r := newRig(t, Options{NeedKey: true})
	scenario{status: http.StatusUnauthorized, has: []string{"key create"}}.check(t, r.do("GET", "/smolgym/v1/status", nil))
	if w := r.do("GET", "/healthz", nil); w.Code != http.StatusOK {
		t.Errorf("health: %d", w.Code)
	}
}
