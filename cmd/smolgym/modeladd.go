package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

func newModelAdd() *cobra.Command {
	var c client
	var as string
	cmd := &cobra.Command{
		Use:   "add NAME DIR|FILE",
		Short: "bring a Hugging Face folder, a safetensors or a GGUF file onto the server",
		Long: `Copies the files of a model to the server, which keeps them byte for byte and
offers the model under NAME at once, while training goes on. NAME is org/name,
or org/name:variant for one's own version of a known model; a bare name becomes
local/name. A FILE is one .safetensors file with its config.json beside it, or one
.gguf file, whose tokenizer comes with it. With --as the model also answers to
another name, such as that of the published model it is.

An upload that was cut goes on where it stopped when the command is run again.`,
		Example: "smolgym model add me/mymodel ./folder\nsmolgym model add Qwen/Qwen3-0.6B:mine ./folder\nsmolgym model add small ./model.gguf --as org/well-known",
		Args:    exactArgs("NAME", "DIR or FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.add(cmd, args[0], args[1], as)
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().StringVar(&as, "as", "", "another name that the model answers to")
	return cmd
}

// modelFiles lists the files of a model below path: what a loader, a tokenizer
// or a person needs of it, and no weights in other formats.
func modelFiles(path string) (root string, names []string, err error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, &exitError{code: exitNotFound, err: fmt.Errorf("add model: no folder or file %q", path)}
	}
	if err != nil {
		return "", nil, err
	}
	root = path
	only := ""
	if !info.IsDir() {
		switch filepath.Ext(path) {
		case ".gguf":
			return filepath.Dir(path), []string{filepath.Base(path)}, nil
		case ".safetensors":
		default:
			return "", nil, usagef("add model: %q is neither a folder nor a .safetensors or .gguf file", path)
		}
		root, only = filepath.Dir(path), filepath.Base(path)
	}
	entries, err := os.ReadDir(root)
	if err != nil {
		return "", nil, err
	}
	kinds := []string{".json", ".jinja", ".model", ".txt", ".md", ".safetensors"}
	for _, e := range entries {
		name := e.Name()
		st, err := os.Stat(filepath.Join(root, name)) // follows links, as hub caches have them
		if err != nil || !st.Mode().IsRegular() || strings.HasPrefix(name, ".") || !slices.Contains(kinds, filepath.Ext(name)) && !isLicence(name) {
			continue
		}
		if only != "" && name != only && (filepath.Ext(name) == ".safetensors" || strings.HasSuffix(name, ".index.json")) {
			continue
		}
		names = append(names, name)
	}
	if len(names) == 0 {
		return "", nil, &exitError{code: exitFailed, hint: "a model folder has config.json and .safetensors files", err: fmt.Errorf("add model: no model files in %q", root)}
	}
	return root, names, nil
}

// isLicence says of a file without an extension that it has to go where the weights go.
func isLicence(name string) bool {
	return slices.Contains([]string{"LICENSE", "LICENCE", "NOTICE"}, strings.ToUpper(name))
}

func (c *client) add(cmd *cobra.Command, name, path, as string) error {
	root, names, err := modelFiles(path)
	if err != nil {
		return err
	}
	p := &progress{out: cmd.ErrOrStderr()}
	req := httpapi.UploadRequest{Name: name}
	for _, n := range names {
		f, err := describe(filepath.Join(root, n), n, p)
		if err != nil {
			return err
		}
		req.Files = append(req.Files, f)
	}
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	var up httpapi.Upload
	if err := c.post("/smolgym/v1/uploads", body, &up); err != nil {
		return err
	}
	for _, f := range up.Files {
		if !f.Done {
			if err := c.send(up.ID, filepath.Join(root, f.Path), f, p); err != nil {
				return err
			}
		}
	}
	p.line("checking")
	var m httpapi.Model
	if err := c.post("/smolgym/v1/uploads/"+up.ID+"/commit", nil, &m); err != nil {
		return err
	}
	if as != "" {
		if err := c.exchange(http.MethodPost, "/smolgym/v1/aliases", httpapi.AliasRequest{Model: m.Name, Alias: as}, &m); err != nil {
			return fmt.Errorf("the model was added as %s, without the alias: %w", m.Name, err)
		}
	}
	for _, w := range m.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", w)
	}
	if c.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(m)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "added %s: %s, %s parameters, context %d\n", m.Name, m.Family, count(m.Parameters), m.Context)
	return err
}

func (c *client) post(path string, body []byte, into any) error {
	data, err := c.call(http.MethodPost, path, bytes.NewReader(body), http.Header{"Content-Type": {"application/json"}})
	if err != nil {
		return err
	}
	return json.Unmarshal(data, into)
}
