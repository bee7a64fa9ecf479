package main

import (
	"encoding/json"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"smolgym/httpapi"
)

// littleDisk is how much a healthy box has left at least, in bytes.
const littleDisk = 1 << 30

func newDoctor() *cobra.Command {
	var c client
	var model string
	cmd := &cobra.Command{
		Use: "doctor", Short: "examine the server: device, dispatch, memory, disk, and a model's numbers", Args: noArgs,
		Long: `Says what the server computes with and how much room it has. With --model it also samples
from a model or checkpoint and computes the same log-probabilities by the sampler among
others, as a prompt, and as training does: the largest difference must be 0. The exit
code is 1 when something is wrong.`,
		Example: "smolgym doctor\nsmolgym doctor --model me/mymodel",
		RunE: func(cmd *cobra.Command, _ []string) error {
			path := "/smolgym/v1/doctor"
			if model != "" {
				path += "?model=" + url.QueryEscape(model)
			}
			data, err := c.get(path)
			if err != nil {
				return err
			}
			var d httpapi.Doctor
			if err := json.Unmarshal(data, &d); err != nil {
				return fmt.Errorf("read the answer of doctor: %w", err)
			}
			if c.asJSON {
				_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", data)
			} else {
				err = printDoctor(cmd, d)
			}
			if g := d.Agreement; err == nil && g != nil && g.Largest != 0 {
				err = fmt.Errorf("%s: sampled, scored and trained log-probabilities differ by up to %g", g.Model, g.Largest)
			}
			return err
		},
	}
	c.jsonFlag(cmd)
	cmd.Flags().StringVar(&model, "model", "", "a model's name, or a checkpoint's path, to examine")
	return cmd
}

func printDoctor(cmd *cobra.Command, d httpapi.Doctor) error {
	s := d.Status
	t := newTable(cmd.OutOrStdout())
	t.row("ok", "device", fmt.Sprintf("%s: %s, %d threads", s.Device, s.DeviceName, s.Threads))
	t.row("ok", "dispatch", fmt.Sprintf("%s (%s), numerics %s", s.Family, s.Why, s.Numerics))
	t.row("ok", "precision", s.Precision)
	t.row(fine(s.FreeBytes > 0), "memory", fmt.Sprintf("%s free of %s", size(s.FreeBytes), size(s.MemoryBytes)))
	free := "free space can't be told"
	if d.Disk.Free >= 0 {
		free = size(d.Disk.Free) + " free"
	}
	t.row(fine(d.Disk.Free < 0 || d.Disk.Free >= littleDisk), "disk", fmt.Sprintf("%s; the store has %s, %s of it to be used again (%s)", free, size(d.Disk.File), size(d.Disk.Unused), d.Disk.Folder))
	if g := d.Agreement; g != nil {
		for _, way := range []struct {
			name string
			d    float64
		}{{"sampled in a batch", g.Batched}, {"scored as a prompt", g.Scored}, {"forward", g.Forward}, {"forward_backward", g.Trained}} {
			t.row(fine(way.d == 0), "sampled = "+way.name, fmt.Sprintf("largest difference %g over %d tokens", way.d, g.Tokens))
		}
	}
	return t.flush()
}

func fine(ok bool) string {
	if ok {
		return "ok"
	}
	return "WRONG"
}
