package main

import (
	"encoding/json"
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

func newModel() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "model",
		Short: "the models on the server",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newModelAdd(), newModelList(), newModelShow(), newModelRemove())
	return cmd
}

func (c *client) jsonFlag(cmd *cobra.Command) {
	c.flags(cmd)
	cmd.Flags().BoolVar(&c.asJSON, "json", false, "print JSON")
}

// fetch decodes a GET; with --json the answer is printed as it came and done is true.
func (c *client) fetch(cmd *cobra.Command, path string, into any) (done bool, err error) {
	data, err := c.get(path)
	if err != nil {
		return false, err
	}
	if c.asJSON {
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", data)
		return true, err
	}
	if err := json.Unmarshal(data, into); err != nil {
		return false, fmt.Errorf("read the answer of %s: %w", path, err)
	}
	return false, nil
}

func newModelList() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "list", Short: "list the models", Example: "smolgym model list --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var list httpapi.Models
			if done, err := c.fetch(cmd, "/smolgym/v1/models", &list); done || err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintln(w, "NAME\tFAMILY\tPARAMETERS\tDTYPE\tCONTEXT\tSIZE\tADDED")
			for _, m := range list.Models {
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\t%s\t%s\n", m.Name, m.Family, count(m.Parameters), m.DType, m.Context, size(m.SizeBytes), m.Created.Local().Format("2006-01-02 15:04"))
			}
			return w.Flush()
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func newModelShow() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "show NAME", Short: "what is known of one model", Example: "smolgym model show me/mymodel", Args: exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var m httpapi.Model
			if done, err := c.fetch(cmd, modelPath(args[0]), &m); done || err != nil {
				return err
			}
			w := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(w, "name\t%s\nfamily\t%s\nparameters\t%d\ndtype\t%s\ncontext\t%d tokens\nsize\t%s\nadded\t%s\n",
				m.Name, m.Family, m.Parameters, m.DType, m.Context, size(m.SizeBytes), m.Created.Local().Format("2006-01-02 15:04"))
			for _, s := range m.Warnings {
				fmt.Fprintf(w, "warning\t%s\n", s)
			}
			for _, f := range m.Files {
				fmt.Fprintf(w, "file\t%s\t%s\tsha256 %s\n", f.Path, size(f.Size), f.SHA256)
			}
			return w.Flush()
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func newModelRemove() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "rm NAME", Short: "remove a model and its files", Example: "smolgym model rm me/mymodel", Args: exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := c.call("DELETE", modelPath(args[0]), nil, nil); err != nil {
				return err
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", args[0])
			return err
		},
	}
	c.flags(cmd)
	return cmd
}

// count is a number of parameters for people.
func count(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.2f B", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f M", float64(n)/1e6)
	case n >= 1e3:
		return fmt.Sprintf("%.0f K", float64(n)/1e3)
	}
	return fmt.Sprint(n)
}

// size is a number of bytes for people.
func size(n int64) string {
	switch {
	case n >= 1<<30:
		return fmt.Sprintf("%.2f GiB", float64(n)/(1<<30))
	case n >= 1<<20:
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	case n >= 1<<10:
		return fmt.Sprintf("%.1f KiB", float64(n)/(1<<10))
	}
	return fmt.Sprintf("%d B", n)
}
