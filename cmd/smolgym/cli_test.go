package main

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"smolgym/model/golden"
)

// binary is the program, built once for all tests here.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "smolgym")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "smolgym")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	if err := os.RemoveAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	os.Exit(code)
}

type result struct {
	code     int
	out, err string
}

func cli(t *testing.T, stdin string, env []string, args ...string) result {
	t.Helper()
	cmd := exec.Command(binary, args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + cmd.Dir}, env...)
	cmd.Stdin = strings.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errs.String()}
}

func (r result) want(t *testing.T, code int, words ...string) {
	t.Helper()
	if r.code != code {
		t.Fatalf("exit code %d, want %d\nstdout: %s\nstderr: %s", r.code, code, r.out, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.out+r.err, w) {
			t.Fatalf("no %q in\nstdout: %s\nstderr: %s", w, r.out, r.err)
		}
	}
	if code == 0 && r.err != "" && !strings.Contains(r.err, "checking") && !strings.Contains(r.err, "note:") {
		t.Fatalf("a good call wrote to stderr: %s", r.err)
	}
	if code != 0 && r.out != "" {
		t.Fatalf("a failed call wrote to stdout: %s", r.out)
	}
}

// TestUsage: wrong calls end with 2, what was wrong, and a working example.
func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args  []string
		words []string
	}{
		{[]string{"frobnicate"}, []string{"frobnicate"}},
		{[]string{"serve", "extra"}, []string{"extra", "for example: smolgym serve"}},
		{[]string{"serve", "--addr", "nonsense"}, []string{"HOST:PORT"}},
		{[]string{"serve", "--memory", "lots"}, []string{"--memory", "8GiB"}},
		{[]string{"serve", "--tls-cert", "x"}, []string{"--tls-key"}},
		{[]string{"serve", "--nope"}, []string{"nope"}},
		{[]string{"model", "add", "name"}, []string{"NAME and DIR", "for example: smolgym model add"}},
		{[]string{"model", "show"}, []string{"NAME"}},
		{[]string{"tokenize", "hello"}, []string{"--model", "--tokenizer"}},
		{[]string{"tokenize", "--tokenizer", "x", "--model", "y"}, []string{"one of"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			cli(t, "", nil, c.args...).want(t, exitUsage, c.words...)
		})
	}
	cli(t, "", nil).want(t, 0, "smolgym serve")
	cli(t, "", nil, "serve", "--addr", "0.0.0.0:0").want(t, exitNotAllowed, "refused", "tunnel")
	cli(t, "", nil, "model", "list", "--server", "http://127.0.0.1:9").want(t, exitUnreachable, "no server", "smolgym serve")
	cli(t, "", []string{"TINKER_BASE_URL=http://127.0.0.1:9"}, "model", "list").want(t, exitUnreachable, "127.0.0.1:9")
	cli(t, "", nil, "model", "add", "me/x", "no/such/folder").want(t, exitNotFound, "no/such/folder")
	cli(t, "", nil, "tokenize", "--tokenizer", "no/such.json", "x").want(t, exitNotFound, "no/such.json")
}

func TestVersion(t *testing.T) {
	cli(t, "", nil, "version").want(t, 0, "smolgym", "numerics")
	var v map[string]any
	if err := json.Unmarshal([]byte(cli(t, "", nil, "version", "--json").out), &v); err != nil || v["version"] == nil || v["numerics"] == nil {
		t.Fatalf("%v: %v", v, err)
	}
}

// own unpacks a small tokenizer of the repository.
func own(t *testing.T) string {
	t.Helper()
	data := golden.Gunzip(t, filepath.Join("..", "..", "tokenizer", "testdata", "own_bytes.json.gz"))
	path := filepath.Join(t.TempDir(), "tokenizer.json")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTokenize(t *testing.T) {
	file := own(t)
	text := "Héllo, wörld 👋\n"
	ids := cli(t, text, nil, "tokenize", "--tokenizer", file)
	ids.want(t, 0)
	back := cli(t, ids.out, nil, "tokenize", "--tokenizer", file, "--decode")
	if back.out != text+"\n" {
		t.Fatalf("%q came back as %q", text, back.out)
	}
	lines := cli(t, "\"a b\"\n\n\"\"\n", nil, "tokenize", "--tokenizer", file, "--jsonl")
	lines.want(t, 0, `{"ids":[`, `{"ids":[]}`)
	first := strings.SplitN(lines.out, "\n", 2)[0]
	list := strings.TrimSuffix(strings.TrimPrefix(first, `{"ids":`), "}")
	cli(t, list+"\n", nil, "tokenize", "--tokenizer", file, "--jsonl", "--decode").want(t, 0, `{"text":"a b"}`)
	cli(t, "\"good\"\n{bad\n", nil, "tokenize", "--tokenizer", file, "--jsonl").wantFailure(t, "line 2")
	cli(t, "", nil, "tokenize", "--tokenizer", file, "--decode", "1 x").want(t, exitUsage, `"x"`)
}

func (r result) wantFailure(t *testing.T, words ...string) {
	t.Helper()
	if r.code != exitFailed {
		t.Fatalf("exit code %d: %s", r.code, r.err)
	}
	for _, w := range words {
		if !strings.Contains(r.err, w) {
			t.Fatalf("no %q in %s", w, r.err)
		}
	}
}

// serve starts a server on a free port and returns its address.
func serve(t *testing.T, dir string) (url string, cmd *exec.Cmd) {
	t.Helper()
	return serveAt(t, dir, "127.0.0.1:0")
}

func serveAt(t *testing.T, dir, addr string) (url string, cmd *exec.Cmd) {
	t.Helper()
	url, cmd, _ = serveWith(t, dir, "--addr", addr)
	return url, cmd
}

func serveWith(t *testing.T, dir string, flags ...string) (url string, cmd *exec.Cmd, said string) {
	t.Helper()
	cmd = exec.Command(binary, append([]string{"serve"}, flags...)...)
	cmd.Dir = dir
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }) // it may have ended already
	lines := bufio.NewScanner(out)
	for !strings.Contains(said, "HF_ENDPOINT") && lines.Scan() { // the banner's last line
		said += lines.Text() + "\n"
	}
	for _, word := range strings.Fields(said) {
		if strings.HasPrefix(word, "http://") {
			url = word
			break
		}
	}
	if url == "" {
		t.Fatalf("no address in the banner: %s", said)
	}
	return url, cmd, said
}

// TestModelVerbs: from an empty folder to a model on the server and away again.
func TestModelVerbs(t *testing.T) {
	dir := t.TempDir()
	began := time.Now()
	url, cmd := serve(t, dir)
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("the server took %v to start", d)
	}
	folder := filepath.Join("..", "..", "testdata", "goldens")
	tarred, err := filepath.Abs(filepath.Join(folder, "steps_llama.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("tar", "xzf", tarred, "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	model := filepath.Join(dir, "steps_llama")
	for _, extra := range []string{"golden.json", "golden.safetensors", "config_v4.json"} {
		if err := os.Remove(filepath.Join(model, extra)); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	env := []string{"TINKER_BASE_URL=" + url}
	cli(t, "", env, "model", "list").want(t, 0, "NAME")
	cli(t, "", env, "model", "add", "me/steps", model).want(t, 0, "added me/steps: llama")
	cli(t, "", env, "model", "add", "me/steps", model).wantFailure(t, "me/steps exists", "model rm")
	cli(t, "", env, "model", "add", "../x", model).wantFailure(t, "model name")
	cli(t, "", env, "model", "list").want(t, 0, "me/steps", "llama")
	cli(t, "", env, "model", "show", "me/steps").want(t, 0, "config.json", "sha256", "model.safetensors")
	var list struct {
		Models []struct {
			Name string `json:"name"`
		} `json:"models"`
	}
	if err := json.Unmarshal([]byte(cli(t, "", env, "model", "list", "--json").out), &list); err != nil || len(list.Models) != 2 || list.Models[0].Name != "me/steps" || list.Models[1].Name != "rack/small" {
		t.Fatalf("%+v: %v", list, err)
	}
	cli(t, "", env, "model", "show", "me/other").want(t, exitNotFound, "me/other")
	cli(t, "", env, "model", "rm", "me/steps").want(t, 0, "removed me/steps")
	cli(t, "", env, "model", "rm", "me/steps").want(t, exitNotFound, "me/steps")

	second := exec.Command(binary, "serve", "--addr", "127.0.0.1:0")
	second.Dir = dir
	if out, err := second.CombinedOutput(); err == nil || !strings.Contains(string(out), fmt.Sprint(cmd.Process.Pid)) {
		t.Fatalf("a second server on the same data folder: %v, %s", err, out)
	}
	resp, err := http.Get(url + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Fatalf("healthz answers %d", resp.StatusCode)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("a server that is told to stop ends with %v", err)
	}
}

// TestLibraries: the binary needs libc, libm and the loader, nothing else.
func TestLibraries(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("ELF is Linux's")
	}
	f, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libs, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, lib := range libs {
		if !slices.ContainsFunc([]string{"libc.so.", "libm.so.", "ld-linux", "libpthread.so.", "libdl.so."}, func(p string) bool { return strings.HasPrefix(lib, p) }) {
			t.Errorf("the binary needs %s", lib)
		}
	}
}
