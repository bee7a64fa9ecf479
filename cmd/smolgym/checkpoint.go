package main

import (
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

func newCheckpoint() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "checkpoint",
		Short: "weights that were saved",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newCheckpointList(), newCheckpointShow(), newCheckpointExport(), newCheckpointImport(), newCheckpointTTL(), newCheckpointRemove())
	return cmd
}

const tinkerScheme = "tinker://"

// checkpointRoute is the route of a checkpoint's path.
func checkpointRoute(path string) (string, error) {
	rest, ok := strings.CutPrefix(path, tinkerScheme)
	parts := strings.Split(rest, "/")
	if !ok || len(parts) != 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return "", usagef("checkpoint path %q: want tinker://RUN/weights/NAME or tinker://RUN/sampler_weights/NAME", path)
	}
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return "/smolgym/v1/checkpoints/" + strings.Join(parts, "/"), nil
}

func newCheckpointList() *cobra.Command {
	var c client
	var run string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "list the checkpoints, newest first", Args: noArgs,
		Example: "smolgym checkpoint list\nsmolgym checkpoint list --run 0f9c…:train:0 --json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q := url.Values{}
			if run != "" {
				q.Set("run", run)
			}
			if limit < 0 {
				return usagef("--limit %d: give a number of checkpoints, 0 for all", limit)
			}
			q.Set("limit", strconv.Itoa(limit))
			var list httpapi.Checkpoints
			if done, err := c.fetch(cmd, "/smolgym/v1/checkpoints?"+q.Encode(), &list); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout(), "PATH", "BASE MODEL", "TRAINS", "STEP", "SIZE", "CREATED", "EXPIRES")
			for _, cp := range list.Checkpoints {
				t.row(cp.Path, cp.BaseModel, trains(cp.Full, cp.Rank), cp.Step, size(cp.SizeBytes), when(&cp.Created), when(cp.Expires))
			}
			if err := t.flush(); err != nil {
				return err
			}
			return more(cmd, len(list.Checkpoints), list.Total, "checkpoints")
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().StringVar(&run, "run", "", "only those of one run")
	cmd.Flags().IntVar(&limit, "limit", 100, "how many (0: all)")
	return cmd
}

// more says on stderr that a list was cut.
func more(cmd *cobra.Command, shown, total int, noun string) error {
	if shown >= total {
		return nil
	}
	_, err := fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d %s; --limit 0 lists all\n", shown, total, noun)
	return err
}

// trains says what a run or checkpoint trains.
func trains(full bool, rank int) string {
	if full {
		return "all"
	}
	return fmt.Sprintf("lora %d", rank)
}

// parts names the parts of a model that a LoRA is on.
func parts(attn, mlp, unembed bool) string {
	var on []string
	for _, p := range []struct {
		name string
		on   bool
	}{{"attention", attn}, {"mlp", mlp}, {"unembed", unembed}} {
		if p.on {
			on = append(on, p.name)
		}
	}
	return strings.Join(on, ", ")
}

func newCheckpointShow() *cobra.Command {
	var c client
	var verbose bool
	cmd := &cobra.Command{
		Use: "show PATH", Short: "what is known of one checkpoint", Args: exactArgs("PATH"),
		Example: "smolgym checkpoint show tinker://0f9c…:train:0/weights/final",
		RunE: func(cmd *cobra.Command, args []string) error {
			route, err := checkpointRoute(args[0])
			if err != nil {
				return err
			}
			var cp httpapi.Checkpoint
			if done, err := c.fetch(cmd, route, &cp); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout())
			t.row("path", cp.Path)
			t.row("base model", cp.BaseModel)
			if cp.Full {
				t.row("trains", "every parameter")
			} else {
				t.row("trains", fmt.Sprintf("LoRA of rank %d, alpha %g (%s)", cp.Rank, cp.Alpha, parts(cp.TrainAttn, cp.TrainMLP, cp.TrainUnembed)))
			}
			if cp.Hub != "" {
				t.row("hub name", cp.Hub+" ("+revisions(cp.Full)+")")
			}
			t.row("step", cp.Step)
			t.row("size", size(cp.SizeBytes))
			t.row("created", when(&cp.Created))
			t.row("expires", when(cp.Expires))
			t.row("numerics", cp.Numerics)
			t.row("tensors", len(cp.Tensors))
			if verbose {
				for _, x := range cp.Tensors {
					t.row("", x.Name, fmt.Sprint(x.Shape), size(x.Bytes))
				}
			}
			return t.flush()
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().BoolVarP(&verbose, "verbose", "v", false, "list the tensors")
	return cmd
}

func newCheckpointRemove() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "rm PATH…", Short: "remove checkpoints", Example: "smolgym checkpoint rm tinker://0f9c…:train:0/weights/final",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return usagef("%s takes one or more PATHs", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			routes := make([]string, len(args))
			for i, path := range args { // nothing is removed if one is wrong
				var err error
				if routes[i], err = checkpointRoute(path); err != nil {
					return err
				}
				if _, err = c.get(routes[i]); err != nil {
					return err
				}
			}
			for i, route := range routes {
				if _, err := c.call(http.MethodDelete, route, nil, nil); err != nil {
					return err
				}
				if err := c.say(cmd, map[string]string{"removed": args[i]}, "removed %s\n", args[i]); err != nil {
					return err
				}
			}
			return nil
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func newCheckpointTTL() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "ttl PATH TIME|never", Short: "let a checkpoint expire after a time from now, or keep it",
		Example: "smolgym checkpoint ttl tinker://0f9c…:train:0/weights/final 7d\nsmolgym checkpoint ttl tinker://0f9c…:train:0/weights/final never",
		Args:    exactArgs("PATH", "TIME or never"),
		RunE: func(cmd *cobra.Command, args []string) error {
			route, err := checkpointRoute(args[0])
			if err != nil {
				return err
			}
			seconds, err := parseTTL(args[1])
			if err != nil {
				return err
			}
			var cp httpapi.Checkpoint
			if err := c.exchange(http.MethodPut, route+"/ttl", httpapi.TTLRequest{Seconds: seconds}, &cp); err != nil {
				return err
			}
			if cp.Expires == nil {
				return c.say(cmd, cp, "%s is kept\n", cp.Path)
			}
			return c.say(cmd, cp, "%s expires %s\n", cp.Path, when(cp.Expires))
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

// parseTTL reads 90m, 12h, 7d or a number of seconds; never is 0.
func parseTTL(s string) (seconds int64, err error) {
	if s == "never" {
		return 0, nil
	}
	d := time.Duration(0)
	if n, ok := strings.CutSuffix(s, "d"); ok {
		var days float64
		if days, err = strconv.ParseFloat(n, 64); err == nil && days < 36500 {
			d = time.Duration(days * 24 * float64(time.Hour))
		}
	} else if n, e := strconv.ParseInt(s, 10, 32); e == nil {
		d = time.Duration(n) * time.Second
	} else {
		d, err = time.ParseDuration(s)
	}
	if err != nil || d < time.Second {
		return 0, usagef("time %q: give a time such as 90m, 12h or 7d, or never", s)
	}
	return int64(d / time.Second), nil
}

// revisions says what hub clients find under a checkpoint's hub name.
func revisions(full bool) string {
	if full {
		return "revision main: the merged model"
	}
	return "revision main: the merged model; adapter: PEFT's form"
}
