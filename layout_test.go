package smolgym

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const module = "smolgym"

// rooms is the house: what each package is, in the one sentence its doc begins
// with, and which of our packages, outside packages and special packages it may
// import. A package that is not here fails the test.
var rooms = map[string]struct {
	may     []string // our packages; a trailing /... takes the folder with it
	outside []string // prefixes of packages outside the standard library
	special []string // of net/http, C and unsafe: those allowed
}{
	"":                   {},
	"model/ir":           {},
	"model/safetensors":  {outside: []string{"github.com/x448/float16"}},
	"model/hf":           {may: []string{"model/safetensors"}},
	"model/gguf":         {may: []string{"model/safetensors", "model/hf"}, outside: []string{"github.com/x448/float16"}},
	"model/golden":       {}, // for tests
	"model/growth":       {}, // for tests
	"model/arch":         {may: []string{"model/ir", "model/hf", "model/safetensors"}},
	"model/grad":         {may: []string{"model/ir"}},
	"model/loss":         {may: []string{"model/ir"}},
	"model/optim":        {may: []string{"model/ir"}},
	"model/lora":         {may: []string{"model/ir", "model/safetensors"}},
	"model/plan":         {may: []string{"model/ir"}},
	"model/customloss":   {},
	"model/onnx":         {may: []string{"model/ir"}, outside: []string{"google.golang.org/protobuf"}},
	"model/export":       {may: []string{"model/hf", "model/lora", "model/safetensors", "model/gguf", "model/onnx", "model/ir", "model/arch"}, outside: []string{"golang.org/x/sys"}},
	"kernels":            {may: []string{"model/ir"}},
	"kernels/reference":  {may: []string{"kernels", "model/ir"}, special: []string{"unsafe"}},
	"kernels/cpu":        {may: []string{"kernels", "model/ir"}, special: []string{"C", "unsafe"}, outside: []string{"golang.org/x/sys"}},
	"kernels/kerneltest": {may: []string{"kernels/...", "model/ir", "model/plan"}, special: []string{"unsafe"}},
	"tokenizer":          {outside: []string{"github.com/nlpodyssey/gotokenizers", "github.com/dlclark/regexp2", "golang.org/x/text"}},
	"tokenizer/gen":      {},
	"tokenizer/chat":     {outside: []string{"github.com/tetratelabs/wazero"}},
	"store":              {may: []string{"store/blob"}, outside: []string{"go.etcd.io/bbolt"}},
	"store/blob":         {outside: []string{"go.etcd.io/bbolt"}},
	"appliance/engine":   {may: []string{"model/...", "kernels", "tokenizer"}},
	"appliance/pull":     {special: []string{"net/http"}},
	"appliance/rack":     {},
	"appliance":          {may: []string{"appliance/engine", "model/...", "kernels/...", "tokenizer/...", "store/..."}, outside: []string{"github.com/google/uuid", "filippo.io/age"}},
	"httpapi/wire":       {outside: []string{"google.golang.org/protobuf", "github.com/klauspost/compress"}},
	"httpapi/hub":        {may: []string{"appliance", "httpapi/wire"}, special: []string{"net/http"}},
	"httpapi":            {may: []string{"appliance", "httpapi/wire", "httpapi/hub"}, outside: []string{"github.com/gin-gonic/gin", "github.com/google/uuid"}, special: []string{"net/http"}},
	"cmd/smolgym":        {may: []string{"httpapi/...", "appliance/...", "model/...", "kernels/...", "tokenizer", "store/..."}, outside: []string{"github.com/spf13/cobra", "golang.org/x/sys"}, special: []string{"net/http"}},
}

// goFiles lists the Go files of each of our packages.
func goFiles(t *testing.T) map[string][]string {
	t.Helper()
	files := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && path != "." && (name == "testdata" || strings.HasPrefix(name, ".") || name == "bin" || name == "smolgym-data") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".go") {
			dir := filepath.ToSlash(filepath.Dir(path))
			if dir == "." {
				dir = ""
			}
			files[dir] = append(files[dir], path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func allowed(list []string, path string) bool {
	for _, p := range list {
		if root, deep := strings.CutSuffix(p, "/..."); path == p || path == root && deep || deep && strings.HasPrefix(path, root+"/") {
			return true
		}
	}
	return false
}

// TestImports holds the direction of every arrow in ARCHITECTURE.md.
func TestImports(t *testing.T) {
	for dir, files := range goFiles(t) {
		room, known := rooms[dir]
		if !known {
			t.Errorf("package %q is not in the table of layout_test.go: say what it may import", dir)
			continue
		}
		for _, path := range files {
			if strings.HasSuffix(path, "_test.go") {
				continue // a test may use what it needs to judge its package
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
			if err != nil {
				t.Errorf("%s: %v", path, err)
				continue
			}
			for _, imp := range f.Imports {
				name := strings.Trim(imp.Path.Value, `"`)
				own, ours := strings.CutPrefix(name, module+"/")
				switch {
				case ours && !allowed(room.may, own):
					t.Errorf("%s imports %s: the table gives %q no such arrow", path, own, dir)
				case (name == "net/http" || name == "C" || name == "unsafe") && !slices.Contains(room.special, name):
					t.Errorf("%s imports %s: only packages marked for it may", path, name)
				case !ours && strings.Contains(strings.Split(name, "/")[0], ".") && !slices.ContainsFunc(room.outside, func(p string) bool { return strings.HasPrefix(name, p) }):
					t.Errorf("%s imports %s: the table gives %q no such dependency", path, name, dir)
				}
			}
		}
	}
}

// TestOneSentence: a package is a sentence, and its doc begins with it.
func TestOneSentence(t *testing.T) {
	for dir := range goFiles(t) {
		if dir == "" || dir == "tokenizer/gen" {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, "doc.go"))
		if err != nil {
			t.Errorf("package %s has no doc.go", dir)
			continue
		}
		head, _, _ := strings.Cut("\n"+string(text), "\npackage ")
		var lines []string
		for line := range strings.Lines(strings.TrimSpace(head)) {
			line = strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(line), "//"))
			if line == "" {
				break
			}
			lines = append(lines, line)
		}
		first := strings.Join(lines, " ")
		name := filepath.Base(dir)
		if !strings.HasPrefix(first, "Package "+name+" ") && !strings.HasPrefix(first, "Command "+name+" ") {
			t.Errorf("%s/doc.go begins %q, wants %q", dir, first, "Package "+name+" ...")
		}
		if !strings.HasSuffix(first, ".") || strings.Count(first, ". ") > 0 || len(first) > 240 {
			t.Errorf("%s/doc.go: the first paragraph is not one short sentence: %q", dir, first)
		}
	}
}

// TestFileSize: a file can be read in one sitting. Generated tables are exempt.
func TestFileSize(t *testing.T) {
	generated := regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	for _, files := range goFiles(t) {
		for _, path := range files {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(text), "\n"); n > 600 && !generated.Match(text) {
				t.Errorf("%s has %d lines, the limit is 600: split it by subject", path, n)
			}
		}
	}
}

// TestOutsidePackages: what the binary is made of is checked in, so that growth
// shows in review. make deps writes the list.
func TestOutsidePackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", "./cmd/smolgym").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var have []string
	for _, name := range strings.Fields(string(out)) {
		if first, _, _ := strings.Cut(name, "/"); strings.Contains(first, ".") {
			have = append(have, name)
		}
	}
	slices.Sort(have)
	text, err := os.ReadFile(filepath.Join("testdata", "deps.txt"))
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(text))
	for _, name := range have {
		if !slices.Contains(want, name) {
			t.Errorf("the binary now contains %s: argue it in ARCHITECTURE.md and run make deps", name)
		}
	}
	for _, name := range want {
		if !slices.Contains(have, name) {
			t.Errorf("the binary no longer contains %s: run make deps", name)
		}
	}
}
