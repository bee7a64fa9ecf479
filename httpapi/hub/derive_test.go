package hub

import (
	"bytes"
	"io"
	"slices"
	"testing"
)

// derived shows every model as a folder beside its stored files.
type derived struct {
	exports
	asked int
}

var shown = map[string][]byte{"config.json": []byte(`{"made": true}`), "tokenizer.json": noise(8, 2<<20), "model.safetensors": noise(9, 3<<20)}

func (d *derived) Derived(string) ([]ExportFile, error) {
	d.asked++
	var list []ExportFile
	for name, raw := range shown {
		list = append(list, ExportFile{name, int64(len(raw)), func(w io.Writer) error {
			_, err := io.Copy(w, bytes.NewReader(raw))
			return err
		}})
	}
	return list, nil
}

func siblingNames(m modelInfo) (names []string) {
	for _, s := range m.Siblings {
		names = append(names, s.Name)
	}
	return names
}

// TestDerived: a GGUF model is a folder to clients, made on the fly and never kept; other models are what they are.
func TestDerived(t *testing.T) {
	box, d := newMemory(), &derived{}
	r := &rig{t, New(box, Options{Export: d, Log: quiet}), box}
	weights := noise(3, 2<<20)
	r.create("me/gguf")
	id := r.put("me/gguf", map[string][]byte{"model.gguf": weights})
	r.create("me/plain")
	r.put("me/plain", map[string][]byte{"config.json": []byte("{}"), "model.safetensors": noise(4, 100)})
	var m modelInfo
	r.want(200, &m, "GET", "/api/models/me/gguf?blobs=true", nil)
	if names := siblingNames(m); !slices.Equal(names, []string{"config.json", "model.gguf", "model.safetensors", "tokenizer.json"}) || !m.Box.Model || m.SHA == id {
		t.Fatalf("%v, %+v", names, m.Box)
	}
	if names := siblingNames(r.info("me/plain")); !slices.Equal(names, []string{"config.json", "model.safetensors"}) {
		t.Errorf("a plain model shows %v", names)
	}
	want := map[string][]byte{"model.gguf": weights}
	for name, raw := range shown {
		want[name] = raw
	}
	for name, raw := range want {
		tag := gitSum(raw)
		if len(raw) > largeBytes {
			tag = hexSum(raw)
		}
		for _, rev := range []string{"main", m.SHA} {
			w := r.want(200, nil, "GET", "/me/gguf/resolve/"+rev+"/"+name, nil)
			if !bytes.Equal(w.Body.Bytes(), raw) || w.Header().Get("ETag") != `"`+tag+`"` || w.Header().Get("X-Repo-Commit") != m.SHA {
				t.Errorf("%s at %s: %d bytes, %v", name, rev, w.Body.Len(), w.Header())
			}
		}
		w := r.want(206, nil, "GET", "/me/gguf/resolve/main/"+name, nil, "Range", "bytes=5-9")
		if !bytes.Equal(w.Body.Bytes(), raw[5:10]) {
			t.Errorf("%s: range gave %q", name, w.Body)
		}
	}
	r.want(404, nil, "GET", "/me/gguf/resolve/"+id+"/config.json", nil) // the commit that was made has what it had
	r.want(200, nil, "GET", "/me/gguf/resolve/"+id+"/model.gguf", nil)

	// What comes later is kept with what was sent, not with what was made.
	later := r.put("me/gguf", map[string][]byte{"README.md": []byte("mine")})
	r.want(404, nil, "GET", "/me/gguf/resolve/"+later+"/config.json", nil)
	r.want(200, nil, "GET", "/me/gguf/resolve/main/config.json", nil)
	if d.asked != 2 {
		t.Errorf("the model was read %d times for two states", d.asked)
	}
	// A configuration of the uploader's own makes the folder theirs.
	r.put("me/gguf", map[string][]byte{"config.json": []byte(`{"mine": true}`)})
	if w := r.want(200, nil, "GET", "/me/gguf/resolve/main/config.json", nil); w.Body.String() != `{"mine": true}` {
		t.Errorf("the uploader's config.json became %q", w.Body)
	}
}
