package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

func newStatus() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "status", Short: "what the server is and does", Example: "smolgym status --json", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var s httpapi.Status
			if done, err := c.fetch(cmd, "/smolgym/v1/status", &s); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout())
			t.row("server", fmt.Sprintf("smolgym %s at %s, since %s", s.Version, c.base(), when(&s.Started)))
			t.row("device", fmt.Sprintf("%s: %s, %s, %d threads (%s)", s.Device, s.DeviceName, s.Family, s.Threads, s.Why))
			t.row("memory", fmt.Sprintf("%s free of %s", size(s.FreeBytes), size(s.MemoryBytes)))
			t.row("precision", s.Precision)
			t.row("numerics", s.Numerics)
			t.row("models", fmt.Sprintf("%d stored, %d in memory", s.Models, s.ModelsLoaded))
			t.row("sessions", s.Sessions)
			t.row("runs", fmt.Sprintf("%d live, %d waiting for the device", s.RunsLive, s.RunsWaiting))
			t.row("samplers", fmt.Sprintf("%d in memory; %d samples under way, %d waiting", s.SamplersLoaded, s.SamplesActive, s.SamplesWaiting))
			return t.flush()
		},
	}
	c.jsonFlag(cmd)
	return cmd
}

func newPs() *cobra.Command {
	var c client
	cmd := &cobra.Command{
		Use: "ps", Short: "what is in device memory: models, runs, samplers", Example: "smolgym ps", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var l httpapi.Loaded
			if done, err := c.fetch(cmd, "/smolgym/v1/ps", &l); done || err != nil {
				return err
			}
			t := newTable(cmd.OutOrStdout(), "KIND", "NAME", "OF", "STATE")
			for _, m := range l.Models {
				t.row("model", m.Name, "", m.Precision+", "+size(m.Bytes))
			}
			for _, r := range l.Runs {
				t.row("run", r.ID, r.BaseModel, fmt.Sprintf("%s, %d requests waiting", trains(r.Full, r.Rank), r.Waiting))
			}
			for _, s := range l.Samplers {
				of := s.BaseModel
				if s.Path != "" {
					of = s.Path
				}
				t.row("sampler", s.ID, of, fmt.Sprintf("%d requests under way, last used %s", s.Active, when(&s.LastUse)))
			}
			return t.flush()
		},
	}
	c.jsonFlag(cmd)
	return cmd
}
