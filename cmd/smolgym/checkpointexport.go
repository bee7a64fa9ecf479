package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

type exportFlags struct {
	client
	to, form, dtype string
}

func newCheckpointExport() *cobra.Command {
	var f exportFlags
	cmd := &cobra.Command{
		Use:   "export PATH --to DIR|FILE",
		Short: "write a checkpoint's weights as files that other tools load",
		Long: `Writes the weights of a checkpoint into a folder, in one of four forms:

  adapter   PEFT's folder (LoRA only): adapter_config.json, adapter_model.safetensors
  merged    a Hugging Face folder like the base model's, with the trained weights in it
  gguf      one file, for llama.cpp and Ollama
  onnx      one file, for ONNX runtimes and viewers; above 1 GiB of weights these lie in a
            second file beside it. Dense models only, in f32

The weights keep the base model's type unless --dtype says another; a base model in
bf16 rounds what was trained. Existing files are never touched.`,
		Example: "smolgym checkpoint export tinker://0f9c…:train:0/weights/final --to ./out --form merged\n" +
			"smolgym checkpoint export tinker://0f9c…:train:0/weights/final --to ./out.gguf --form gguf --dtype q8_0",
		Args: exactArgs("PATH"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	f.jsonFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&f.to, "to", "", "folder to write into; with --form gguf or onnx also a file")
	fl.StringVar(&f.form, "form", "", "adapter, merged, gguf or onnx (default: adapter for LoRA, merged for a full update)")
	fl.StringVar(&f.dtype, "dtype", "", "f32, f16 or bf16; for gguf also q8_0 (default: the base model's; gguf: f16; onnx: f32)")
	return cmd
}

func (f *exportFlags) run(cmd *cobra.Command, path string) error {
	route, err := checkpointRoute(path)
	if err != nil {
		return err
	}
	if f.to == "" {
		return usagef("%s needs --to DIR", cmd.CommandPath())
	}
	if !slices.Contains([]string{"", "adapter", "merged", "gguf", "onnx"}, f.form) {
		return usagef("--form %q: give adapter, merged, gguf or onnx", f.form)
	}
	query := url.Values{}
	for k, v := range map[string]string{"form": f.form, "dtype": f.dtype} {
		if v != "" {
			query.Set(k, v)
		}
	}
	if f.form == "onnx" && f.isFile() {
		query.Set("name", filepath.Base(f.to)) // the file names the one beside it
	}
	return f.write(cmd, path, route+"/export?"+query.Encode(), func(file string) string {
		return route + "/export/" + escaped(file) + "?" + query.Encode()
	})
}

// isFile says whether --to names a file and not a folder.
func (f *exportFlags) isFile() bool { return f.form != "" && strings.HasSuffix(f.to, "."+f.form) }

// write fetches the files that a route lists, each from the route that file gives.
func (f *exportFlags) write(cmd *cobra.Command, what, list string, route func(file string) string) error {
	data, err := f.get(list)
	if err != nil {
		return err
	}
	var x httpapi.Export
	if err := json.Unmarshal(data, &x); err != nil {
		return fmt.Errorf("read the answer of export: %w", err)
	}
	targets, err := f.targets(x)
	if err != nil {
		return err
	}
	for _, note := range x.Notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "note:", plain(note))
	}
	p := &progress{out: cmd.ErrOrStderr()}
	var total int64
	for i, file := range x.Files {
		if err := f.download(route(file.Path), targets[i], file.Size, p); err != nil {
			return fmt.Errorf("write %s: %w", targets[i], err)
		}
		total += file.Size
	}
	if f.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]any{"path": what, "form": x.Form, "files": targets, "bytes": total})
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s to %s: %s, %s\n", what, f.to, counted(len(targets), "file"), size(total))
	return err
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// escaped is a path with slashes for a route.
func escaped(path string) string {
	parts := strings.Split(path, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

// targets says where each file goes, and refuses before anything is written.
func (f *exportFlags) targets(x httpapi.Export) ([]string, error) {
	list := make([]string, len(x.Files))
	for i, file := range x.Files {
		if !filepath.IsLocal(filepath.FromSlash(file.Path)) {
			return nil, fmt.Errorf("the server names a file %q, which would lie outside of %s", file.Path, f.to)
		}
		list[i] = filepath.Join(f.to, filepath.FromSlash(file.Path))
		switch {
		case f.isFile() && f.form == "onnx":
			list[i] = filepath.Join(filepath.Dir(f.to), filepath.FromSlash(file.Path))
		case f.isFile():
			list[i] = f.to
		}
		if _, err := os.Lstat(list[i]); err == nil {
			return nil, &exitError{code: exitFailed, hint: "choose another place", err: fmt.Errorf("%s is there already", list[i])}
		} else if !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return list, nil
}

// download writes one file; it is there whole or not at all.
func (f *exportFlags) download(route, target string, length int64, p *progress) (err error) {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	resp, err := f.open(context.Background(), http.MethodGet, route, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	part, err := os.CreateTemp(filepath.Dir(target), ".part-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part.Name()))
		}
	}()
	n, err := save(part, p.reader(resp.Body, "writing "+filepath.Base(target), 0, length))
	if err == nil && n != length {
		err = fmt.Errorf("%d bytes came, %d were announced", n, length)
	}
	if err == nil {
		err = part.Chmod(0o644)
	}
	if err = errors.Join(err, part.Close()); err != nil {
		return err
	}
	return os.Rename(part.Name(), target)
}
