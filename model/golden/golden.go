package golden

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"testing"
)

// Root is the repository's folder.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	for err == nil {
		if _, missing := os.Stat(filepath.Join(dir, "go.mod")); missing == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			err = os.ErrNotExist
		}
		dir = up
	}
	t.Fatalf("find the repository: %v", err)
	return ""
}

// Shared is the folder of shared material: that of SMOLGYM_SHARED, else the one beside the repository.
func Shared(t testing.TB) string {
	t.Helper()
	if dir := os.Getenv("SMOLGYM_SHARED"); dir != "" {
		return dir
	}
	return filepath.Join(Root(t), "..", "shared")
}

// Path finds an archive by its name: among the repository's models, its families, or the shared goldens. The test is
// skipped where it isn't.
func Path(t testing.TB, name string) string {
	t.Helper()
	testdata := filepath.Join(Root(t), "testdata")
	for _, dir := range []string{filepath.Join(testdata, "goldens"), filepath.Join(testdata, "families"), filepath.Join(Shared(t), "goldens", "data")} {
		file := filepath.Join(dir, name+".tar.gz")
		if _, err := os.Stat(file); err == nil {
			return file
		} else if !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	t.Skipf("golden %s is absent; set SMOLGYM_SHARED to the shared folder", name)
	return ""
}

// Gunzip is what a .gz file holds.
func Gunzip(t testing.TB, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatalf("unpack %s: %v", file, err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatalf("unpack %s: %v", file, err)
	}
	return data
}

// Unpack is what the .tar.gz file holds: contents by their paths in it.
func Unpack(t testing.TB, file string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for r := tar.NewReader(bytes.NewReader(Gunzip(t, file))); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatalf("unpack %s: %v", file, err)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		if files[path.Clean(h.Name)], err = io.ReadAll(r); err != nil {
			t.Fatalf("unpack %s: %s: %v", file, h.Name, err)
		}
	}
}

// Files are the named files of an archive, by their names without folders; all of them if none is named.
func Files(t testing.TB, file string, names ...string) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for name, text := range Unpack(t, file) {
		if base := path.Base(name); len(names) == 0 || slices.Contains(names, base) {
			files[base] = text
		}
	}
	return files
}

// Lay writes an archive found by Path into a folder of the test's own and gives the archive's folder in it.
func Lay(t testing.TB, name string) string {
	t.Helper()
	dir := t.TempDir()
	files := Unpack(t, Path(t, name))
	for _, at := range slices.Sorted(maps.Keys(files)) {
		to := filepath.Join(dir, filepath.FromSlash(path.Join("/", at)))
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, files[at], 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, name)
}
