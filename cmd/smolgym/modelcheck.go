package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"smolgym/appliance"
	"smolgym/model/gguf"
	"smolgym/model/hf"
)

// verdict is the answer of model check in JSON.
type verdict struct {
	Path       string   `json:"path"`
	Taken      bool     `json:"taken"`
	Family     string   `json:"family,omitempty"`
	Parameters int64    `json:"parameters,omitempty"`
	DType      string   `json:"dtype,omitempty"`
	Context    int      `json:"context,omitempty"`
	Tokenizer  bool     `json:"tokenizer"`
	Reasons    []string `json:"reasons"` // everything that can't be taken
	Unused     []string `json:"unused"`  // tensors that the model doesn't read
	Warnings   []string `json:"warnings"`
}

func newModelCheck() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "check DIR|FILE",
		Short: "say whether a folder or file can be taken, before anything is copied",
		Long: `Reads configuration, tensor index and tokenizer of a Hugging Face folder, a
.safetensors file or a .gguf file on this machine, and prints everything that can't
be taken, which tensors would not be used, and what is odd. No server is needed.
The exit code is 1 for a model that can't be taken.`,
		Example: "smolgym model check ./folder\nsmolgym model check ./model.gguf --json",
		Args:    exactArgs("DIR or FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			v, err := check(args[0])
			if err != nil {
				return err
			}
			if asJSON {
				err = json.NewEncoder(cmd.OutOrStdout()).Encode(v)
			} else {
				err = v.print(cmd)
			}
			if err == nil && !v.Taken {
				err = &exitError{code: exitFailed, err: fmt.Errorf("%s can't be taken: %s", v.Path, counted(len(v.Reasons), "reason"))}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// openModel shows a folder or file as the packages that read models see it.
func openModel(path string) (hf.Source, []string, error) {
	if filepath.Ext(path) == ".gguf" {
		src, err := gguf.OpenPath(path, gguf.Options{})
		if err != nil {
			return nil, nil, err
		}
		return src, src.Warnings, nil
	}
	src, err := hf.OpenPath(path)
	return src, nil, err
}

// check is the verdict on a folder or file.
func check(path string) (*verdict, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, &exitError{code: exitNotFound, err: fmt.Errorf("check model: no folder or file %q", path)}
	}
	v := &verdict{Path: path, Reasons: []string{}, Unused: []string{}, Warnings: []string{}}
	src, odd, err := openModel(path)
	var x *appliance.Verdict
	if err == nil {
		v.Warnings = append(v.Warnings, odd...)
		x, err = appliance.Examine(filepath.Base(path), src)
	}
	if err != nil {
		var p *appliance.Problem
		if errors.As(err, &p) && p.Code == appliance.CodeServer {
			return nil, errors.Join(err, p.Unwrap())
		}
		v.Reasons = append(v.Reasons, err.Error())
		return v, nil
	}
	v.Family, v.Context, v.Tokenizer = x.Checkpoint.Config.ModelType, x.Context, x.Tokenizer != nil
	v.Parameters, v.DType = x.Size()
	v.Reasons, v.Unused, v.Warnings = append(v.Reasons, x.Gaps...), append(v.Unused, x.Unused...), append(v.Warnings, x.Warnings...)
	v.Taken = len(v.Reasons) == 0
	return v, nil
}

func (v *verdict) print(cmd *cobra.Command) error {
	t := newTable(cmd.OutOrStdout())
	if v.Family != "" {
		t.row("family", v.Family)
		t.row("parameters", v.Parameters)
		t.row("dtype", v.DType)
	}
	if v.Context > 0 { // known of what can be taken
		t.row("context", fmt.Sprintf("%d tokens", v.Context))
	}
	for _, s := range v.Reasons {
		t.row("can't be taken", s)
	}
	for _, s := range v.Unused {
		t.row("not used", s)
	}
	for _, s := range v.Warnings {
		t.row("warning", s)
	}
	if v.Taken {
		t.row("verdict", "can be taken: smolgym model add NAME "+v.Path)
	}
	return t.flush()
}
