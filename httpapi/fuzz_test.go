package httpapi

import (
	"bytes"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"smolgym/appliance"
)

// Whatever is sent to whatever path, the server lives, answers JSON or a result,
// and never with a status that means something else to clients.
func FuzzRequests(f *testing.F) {
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	box, err := appliance.Open(appliance.Options{Data: f.TempDir(), Device: "reference", Log: log})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := box.Close(); err != nil {
			f.Error(err)
		}
	})
	h := New(box, Options{Log: log, Hold: time.Millisecond})
	session, err := box.CreateSession(appliance.SessionRequest{})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("POST", "/api/v1/create_session", []byte(`{"tags":[]}`))
	f.Add("POST", "/api/v1/create_model", []byte(`{"session_id":"`+session+`","model_seq_id":0,"base_model":"x","lora_config":{"rank":1}}`))
	f.Add("POST", "/api/v1/forward_backward", []byte("\x0a\x01x\x10\x01"))
	f.Add("POST", "/api/v1/asample", []byte(`{"sampling_session_id":"x","seq_id":1,"prompt":{"chunks":[]},"sampling_params":{}}`))
	f.Add("POST", "/api/v1/load_weights", []byte(`{"model_id":"x","seq_id":1,"path":"tinker://x/weights/y","optimizer":true}`))
	f.Add("POST", "/api/v1/retrieve_future", []byte(`{"request_id":"x"}`))
	f.Add("DELETE", "/api/v1/training_runs/x/checkpoints/weights/y", []byte(nil))
	f.Add("POST", "/smolgym/v1/uploads", []byte(`{"name":"a","files":[{"path":"config.json","size":2,"sha256":"44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"}]}`))
	f.Add("PUT", "/smolgym/v1/uploads/x/files/y?offset=1", []byte("x"))
	f.Add("GET", "/api/v1/checkpoints?limit=9&offset=1", []byte(nil))
	f.Fuzz(func(t *testing.T, method, path string, body []byte) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || method == "" || strings.ContainsFunc(method, func(r rune) bool { return r <= ' ' || r > '~' }) {
			t.Skip()
		}
		req := &http.Request{Method: method, URL: u, Host: "x", Body: io.NopCloser(bytes.NewReader(body)), ContentLength: int64(len(body)), Header: http.Header{}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}
		req.Header.Set("X-API-Key", "tml-x")
		req.Header.Set("Content-Type", "application/json")
		if strings.HasSuffix(u.Path, "forward_backward") {
			req.Header.Set("Content-Type", protobuf)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		switch w.Code {
		case 200, 400, 401, 404, 405, 408, 410, 413, 415, 429:
		default:
			t.Errorf("%s %q: status %d %s", method, path, w.Code, w.Body)
		}
		if w.Code != 200 && w.Code != 408 {
			var e struct{ Detail string }
			if err := json.Unmarshal(w.Body.Bytes(), &e); err != nil || e.Detail == "" {
				t.Errorf("%s %q: %d with body %q", method, path, w.Code, w.Body)
			}
		}
	})
}
