package appliance

import (
	"path/filepath"
	"strings"
	"testing"

	"smolgym/model/hf"
)

// Whatever is accepted as a name stays within a folder and names one thing only.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"a", "org/name:v1", "../x", "/abs", "a\x00", "model.safetensors", "a/b/c", "a..b", "", ".", "ü/x", `a\b`, "tinker://a:train:0/weights/x"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		inside := func(name string) {
			t.Helper()
			if !filepath.IsLocal(name) || strings.ContainsAny(name, "\x00\\\n") || strings.Contains(name, "..") || len(name) > 512 {
				t.Errorf("accepted %q", name)
			}
		}
		if name, err := newModelName(s); err == nil {
			inside(name)
			if strings.Count(name, "/") != 1 || strings.Count(name, ":") > 1 {
				t.Errorf("model name %q became %q", s, name)
			}
			if again, err := ModelName(name); err != nil || again != name {
				t.Errorf("model name %q became %q, then %q, %v", s, name, again, err)
			}
		}
		if checkFilePath(s) == nil && hf.CheckName(s) == nil {
			inside(s)
		}
		if checkCheckpointName(s) == nil {
			inside(s)
			if strings.Contains(s, "/") {
				t.Errorf("checkpoint name %q", s)
			}
		}
		if key, err := parsePath(s); err == nil && key.Path() != s {
			t.Errorf("path %q means %q", s, key.Path())
		}
	})
}
