package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

func newCheckpointImport() *cobra.Command {
	var c client
	var model, as string
	cmd := &cobra.Command{
		Use:   "import DIR --model NAME",
		Short: "bring an adapter or a fine-tuned model to sample from and to train on",
		Long: `Takes the folder of a PEFT adapter (adapter_config.json, adapter_model.safetensors)
trained over the stored model NAME, and prints the checkpoint that it becomes.

A Hugging Face folder with a whole model becomes a model called NAME instead.`,
		Example: "smolgym checkpoint import ./adapter --model me/mymodel --as start\nsmolgym checkpoint import ./merged --model me/mymodel:tuned",
		Args:    exactArgs("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			dir := args[0]
			if info, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) || err == nil && !info.IsDir() {
				return &exitError{code: exitNotFound, err: fmt.Errorf("import: no folder %q", dir)}
			} else if err != nil {
				return err
			}
			if model == "" {
				return usagef("%s needs --model NAME: the model the adapter is over", cmd.CommandPath())
			}
			if _, err := os.Stat(filepath.Join(dir, "adapter_config.json")); errors.Is(err, fs.ErrNotExist) {
				if as != "" {
					return usagef("%s: %s has no adapter_config.json, so it is a whole model, and --as names checkpoints; leave it out", cmd.CommandPath(), dir)
				}
				return c.add(cmd, model, dir, "")
			}
			if as == "" {
				as = "imported"
			}
			return c.importAdapter(cmd, model, dir, as)
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().StringVar(&model, "model", "", "the stored model the adapter is over; for a whole model, its new name")
	cmd.Flags().StringVar(&as, "as", "", "name of the checkpoint (default: imported)")
	return cmd
}

// importAdapter sends an adapter's folder and prints the checkpoint.
func (c *client) importAdapter(cmd *cobra.Command, model, dir, as string) error {
	p := &progress{out: cmd.ErrOrStderr()}
	req := httpapi.ImportRequest{Model: model}
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors", "README.md"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		f, err := describe(filepath.Join(dir, name), name, p)
		if err != nil {
			return err
		}
		req.Files = append(req.Files, f)
	}
	var up httpapi.Upload
	if err := c.exchange(http.MethodPost, "/smolgym/v1/imports", req, &up); err != nil {
		return err
	}
	for _, f := range up.Files {
		if !f.Done {
			if err := c.send(up.ID, filepath.Join(dir, f.Path), f, p); err != nil {
				return err
			}
		}
	}
	var im httpapi.Imported
	if err := c.exchange(http.MethodPost, "/smolgym/v1/uploads/"+up.ID+"/import", httpapi.ImportName{Name: as}, &im); err != nil {
		return err
	}
	for _, note := range im.Notes {
		fmt.Fprintln(cmd.ErrOrStderr(), "note:", plain(note))
	}
	if c.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(im)
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "imported %s over %s: %s\n", im.Path, im.BaseModel, trains(im.Full, im.Rank))
	return err
}
