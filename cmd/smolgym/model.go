package main

import (
	"encoding/json"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
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
	cmd.AddCommand(newModelAdd(), newModelPull(), newModelCheck(), newModelList(), newModelShow(), newModelRemove())
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
	var graph, verbose bool
	var onnx string
	cmd := &cobra.Command{
		Use: "show NAME", Short: "what is known of one model, or the graph that it computes", Args: exactArgs("NAME"),
		Example: "smolgym model show me/mymodel\nsmolgym model show me/mymodel --graph\nsmolgym model show me/mymodel --onnx mymodel.onnx",
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case graph && onnx != "":
				return usagef("give --graph or --onnx, one of them")
			case onnx != "":
				return c.showONNX(cmd, args[0], onnx)
			case graph:
				return c.showGraph(cmd, args[0], verbose)
			}
			var m httpapi.Model
			if done, err := c.fetch(cmd, modelPath(args[0]), &m); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout())
			t.row("name", m.Name)
			for _, a := range m.Aliases {
				t.row("alias", a)
			}
			t.row("family", m.Family)
			t.row("parameters", m.Parameters)
			t.row("dtype", m.DType)
			t.row("context", fmt.Sprintf("%d tokens", m.Context))
			t.row("size", size(m.SizeBytes))
			t.row("added", when(&m.Created))
			for _, s := range m.Warnings {
				t.row("warning", s)
			}
			for _, f := range m.Files {
				t.row("file", f.Path, size(f.Size), "sha256 "+f.SHA256)
			}
			return t.flush()
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().BoolVar(&graph, "graph", false, "print the graph that training runs, one line a value or node")
	cmd.Flags().StringVar(&onnx, "onnx", "", "write the graph with its weights (f32) to this file, for ONNX viewers and runtimes; above 1 GiB the weights lie beside it")
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "with --graph: also the graph that sampling runs")
	return cmd
}

// graphPath is the route of a model's graph.
func graphPath(name string) string {
	return "/smolgym/v1/graphs/" + strings.TrimPrefix(modelPath(name), "/smolgym/v1/models/")
}

// showONNX writes a model's graph and weights as an ONNX file.
func (c *client) showONNX(cmd *cobra.Command, name, file string) error {
	f := exportFlags{client: *c, to: file, form: "onnx"}
	if !f.isFile() {
		return usagef("--onnx %q: give a file name that ends in .onnx", file)
	}
	query := url.Values{"form": {"onnx"}, "name": {filepath.Base(file)}}
	route := graphPath(name) + "?" + query.Encode()
	return f.write(cmd, name, route, func(file string) string { return route + "&file=" + url.QueryEscape(file) })
}

// showGraph prints a model's graphs.
func (c *client) showGraph(cmd *cobra.Command, name string, both bool) error {
	route := graphPath(name)
	modes := []string{"train"}
	if both {
		modes = append(modes, "decode")
	}
	texts := map[string]string{}
	for _, mode := range modes {
		text, err := c.get(route + "?mode=" + mode)
		if err != nil {
			return err
		}
		texts[mode] = string(text)
	}
	if c.asJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(texts)
	}
	for _, mode := range modes {
		if both {
			fmt.Fprintf(cmd.OutOrStdout(), "# %s\n", mode)
		}
		if _, err := fmt.Fprint(cmd.OutOrStdout(), texts[mode]); err != nil {
			return err
		}
	}
	return nil
}

func newModelRemove() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "rm NAME", Short: "remove a model and its files", Example: "smolgym model rm me/mymodel", Args: exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, err := c.call("DELETE", modelPath(args[0]), nil, nil); err != nil {
				return err
			}
			return c.say(cmd, map[string]string{"removed": args[0]}, "removed %s\n", args[0])
		},
	}
	c.jsonFlag(cmd)
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
