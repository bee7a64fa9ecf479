package appliance

import (
	"strings"
	"testing"
	"testing/fstest"
)

// embeddedModel is a tiny model as a program would carry it; note is a file that tells versions apart.
func embeddedModel(t *testing.T, note string) []Embedded {
	t.Helper()
	files := fstest.MapFS{"README.md": {Data: []byte(note)}}
	for name, data := range tinyModel(t, "llama") {
		files[name] = &fstest.MapFile{Data: data}
	}
	return []Embedded{{Name: "rack/tiny", Files: files}}
}

func version(t *testing.T, a *Appliance) string {
	t.Helper()
	m, err := a.Model("rack/tiny")
	if err != nil {
		t.Fatal(err)
	}
	f, _ := m.File("README.md")
	c, err := a.OpenContent(f.SHA256.String())
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, f.Size)
	if _, err := c.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A model that comes with the program is in the store from the first start, once; it keeps the aliases it was given; it can't be
// removed or uploaded over.
func TestEmbeddedModel(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Options{Data: dir, Embedded: embeddedModel(t, "one")})
	if _, err := a.AddAlias("rack/tiny", "me/known"); err != nil {
		t.Fatal(err)
	}
	if err := a.RemoveModel("rack/tiny"); err == nil || !strings.Contains(err.Error(), "comes with the program") {
		t.Errorf("remove: %v", err)
	}
	if _, err := a.BeginUpload("rack/tiny", []ManifestFile{{Path: "config.json", Size: 1, SHA256: [32]byte{1}}}); err == nil || !strings.Contains(err.Error(), "reserved") {
		t.Errorf("upload: %v", err)
	}
	first, err := a.Model("rack/tiny")
	if err != nil {
		t.Fatal(err)
	}
	shut(t, a)

	a = open(t, Options{Data: dir, Embedded: embeddedModel(t, "one")})
	again, err := a.Model("me/known")
	if err != nil || !again.Created.Equal(first.Created) {
		t.Errorf("made %v, then %v: %v", first.Created, again.Created, err)
	}
	for wrong, want := range map[string]string{"rack/tinny": `"rack/tiny"`, "Rack/Tiny": `"rack/tiny"`, "me/know": `"me/known"`, "me/other": "model pull"} {
		if _, err := a.Model(wrong); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", wrong, err)
		}
	}
	if all, err := a.Models(); err != nil || len(all) != 1 {
		t.Errorf("%d models, %v", len(all), err)
	}
}

// A newer program brings its own form of the model unless something was trained from the old one.
func TestEmbeddedModelUpdate(t *testing.T) {
	dir := t.TempDir()
	a := open(t, Options{Data: dir, Embedded: embeddedModel(t, "one")})
	if _, err := a.AddAlias("rack/tiny", "me/known"); err != nil {
		t.Fatal(err)
	}
	shut(t, a)

	a = open(t, Options{Data: dir, Embedded: embeddedModel(t, "two")})
	if got := version(t, a); got != "two" {
		t.Errorf("version %q, want two", got)
	}
	if _, err := a.Model("me/known"); err != nil {
		t.Errorf("alias: %v", err)
	}
	session, err := a.CreateSession(SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	request := lora(session, 0)
	request.BaseModel = "rack/tiny"
	ticket, err := a.CreateModel(request)
	if ans := wait(t, a, ticket, err); ans.Failure != nil {
		t.Fatal(ans.Failure.Message)
	}
	shut(t, a)

	a = open(t, Options{Data: dir, Embedded: embeddedModel(t, "three")})
	if got := version(t, a); got != "two" {
		t.Errorf("version %q, want the one that was trained from", got)
	}
}
