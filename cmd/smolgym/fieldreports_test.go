package main

import (
	"bytes"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"smolgym/httpapi"
)

// FR-20: a head that differs from the embedding of a model that says it is tied is seen before it is added, and when it is.
func TestFR20WarningIsSeen(t *testing.T) {
	dir := folder(t, "steps_llama")
	config := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(config)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte(`"tie_word_embeddings": false`), []byte(`"tie_word_embeddings": true`), 1)
	if err := os.WriteFile(config, text, 0o600); err != nil {
		t.Fatal(err)
	}
	const says = "tie_word_embeddings is true, but lm_head.weight differs"
	cli(t, "", nil, "model", "check", dir).want(t, 0, "warning", says)
	url, _ := serve(t, t.TempDir())
	env := []string{"TINKER_BASE_URL=" + url}
	r := cli(t, "", env, "model", "add", "tied", dir)
	if r.code != 0 || !strings.Contains(r.err, "warning: "+says) {
		t.Errorf("%+v", r)
	}
	cli(t, "", env, "model", "show", "tied").want(t, 0, says)
}

// FR-30: a GPU that is asked for and can't be used ends the process soon, with the reason and a way out.
func TestFR30NoSilentCPU(t *testing.T) {
	for _, device := range []string{"cuda", "cuda:3"} {
		began := time.Now()
		r := cli(t, "", nil, "serve", "--addr", "127.0.0.1:0", "--device", device)
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s: the process took %v to end", device, took)
		}
		r.want(t, exitFailed, "device "+device, "CUDA", "--device cpu")
	}
}

// FR-30: what was chosen by itself is named with the reason where the server starts and where it is asked.
func TestFR30WhyThisDevice(t *testing.T) {
	for device, why := range map[string]string{"auto": "auto: ", "cpu": "asked for by name"} {
		dir := t.TempDir()
		url, _, banner := serveWith(t, dir, "--addr", "127.0.0.1:0", "--device", device)
		line := ""
		for l := range strings.Lines(banner) {
			if strings.Contains(l, "  device  ") {
				line = l
			}
		}
		if !strings.Contains(line, "cpu: ") || !strings.Contains(line, "("+why) {
			t.Errorf("%s: the banner says %q", device, line)
		}
		resp, err := http.Get(url + "/healthz")
		if err != nil {
			t.Fatal(err)
		}
		var h httpapi.Health
		if err := json.NewDecoder(resp.Body).Decode(&h); err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil {
			t.Fatal(err)
		}
		if h.Device != "cpu" || !strings.HasPrefix(h.Why, why) || !strings.Contains(line, h.Why) {
			t.Errorf("%s: health says %q, the banner %q", device, h.Why, line)
		}
	}
}
