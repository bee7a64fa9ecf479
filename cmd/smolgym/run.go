package main

import (
	"fmt"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run",
		Short: "training runs",
		Args:  noArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newRunList(), newRunShow())
	return cmd
}

func newRunList() *cobra.Command {
	var c client
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "list the training runs, newest first", Example: "smolgym run list --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return usagef("--limit %d: give a number of runs, 0 for all", limit)
			}
			var list httpapi.Runs
			if done, err := c.fetch(cmd, "/smolgym/v1/runs?limit="+strconv.Itoa(limit), &list); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout(), "RUN", "BASE MODEL", "TRAINS", "STATE", "CREATED", "LAST REQUEST")
			for _, r := range list.Runs {
				t.row(r.ID, r.BaseModel, trains(r.Full, r.Rank), state(r.Live), when(&r.Created), when(r.LastRequest))
			}
			if err := t.flush(); err != nil {
				return err
			}
			return more(cmd, len(list.Runs), list.Total, "runs")
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().IntVar(&limit, "limit", 100, "how many (0: all)")
	return cmd
}

func state(live bool) string {
	if live {
		return "live"
	}
	return "ended"
}

func newRunShow() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "show ID", Short: "what is known of one run, with its checkpoints", Example: "smolgym run show 0f9c…:train:0", Args: exactArgs("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var r httpapi.Run
			if done, err := c.fetch(cmd, "/smolgym/v1/runs/"+url.PathEscape(args[0]), &r); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout())
			t.row("run", r.ID)
			t.row("base model", r.BaseModel)
			if r.Full {
				t.row("trains", "every parameter")
			} else {
				t.row("trains", fmt.Sprintf("LoRA of rank %d (%s)", r.Rank, parts(r.TrainAttn, r.TrainMLP, r.TrainUnembed)))
			}
			t.row("state", state(r.Live))
			t.row("created", when(&r.Created))
			t.row("last request", when(r.LastRequest))
			t.row("from", r.FromPath)
			t.row("numerics", r.Numerics)
			if err := t.flush(); err != nil || len(r.Checkpoints) == 0 {
				return err
			}
			t = newTable(cmd.OutOrStdout(), "CHECKPOINT", "STEP", "SIZE", "CREATED", "EXPIRES")
			for _, cp := range r.Checkpoints {
				t.row(cp.Path, cp.Step, size(cp.SizeBytes), when(&cp.Created), when(cp.Expires))
			}
			return t.flush()
		},
	}
	c.jsonFlag(cmd)
	return cmd
}
