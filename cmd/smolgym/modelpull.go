package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"time"

	"github.com/spf13/cobra"

	"smolgym/appliance/pull"
	"smolgym/httpapi"
)

func newModelPull() *cobra.Command {
	var c client
	var o pull.Options
	cmd := &cobra.Command{
		Use:   "pull ORG/NAME",
		Short: "fetch a model from a hub onto the server",
		Long: `Fetches the files of one commit of a model through this machine onto the server and
checks every one by its hash. One that was cut goes on where it stopped when the command
is run again. A key for the hub is taken from HF_TOKEN and sent to no other host.`,
		Example: "smolgym model pull Qwen/Qwen3-0.6B\nsmolgym model pull org/name --from http://mirror:8080 --as me/name",
		Args:    exactArgs("ORG/NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.Name = args[0]
			if o.From != "" {
				if u, err := url.Parse(o.From); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
					return usagef("--from %q: give the address of a hub, such as https://huggingface.co", o.From)
				}
			}
			return c.pull(cmd, o)
		},
	}
	c.jsonFlag(cmd)
	fl := cmd.Flags()
	fl.StringVar(&o.From, "from", "", "address of the hub or mirror (default: "+pull.DefaultHub+")")
	fl.StringVar(&o.As, "as", "", "name of the model on the server (default: ORG/NAME)")
	fl.StringVar(&o.Revision, "revision", "", "branch, tag or commit (default: main)")
	return cmd
}

func (c *client) pull(cmd *cobra.Command, o pull.Options) error {
	if _, err := c.get("/smolgym/v1/status"); err != nil { // better now than after the hub's answer
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	p := &progress{out: cmd.ErrOrStderr(), last: time.Now()}
	o.Token = os.Getenv("HF_TOKEN")
	o.Progress = func(at pull.Progress) {
		if time.Since(p.last) > time.Second {
			p.line(fmt.Sprintf("%s: %s of %s", plain(at.Path), size(at.Have), size(at.Total)))
		}
	}
	r, err := pull.Model(ctx, &pull.Server{URL: c.base(), Key: apiKey()}, o)
	if err != nil {
		return pullError(ctx, err)
	}
	data, err := c.get(modelPath(r.Name))
	if err != nil {
		return err
	}
	var m httpapi.Model
	if err := json.Unmarshal(data, &m); err != nil {
		return fmt.Errorf("read the answer about %s: %w", r.Name, err)
	}
	for _, w := range m.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "note:", plain(w))
	}
	return c.say(cmd, m, "pulled %s at %s: %s, %s parameters, %s\n", m.Name, r.Commit, m.Family, count(m.Parameters), counted(len(m.Files), "file"))
}

// pullError gives a failure its exit code.
func pullError(ctx context.Context, err error) error {
	e := &exitError{code: exitFailed, err: err}
	var refused *pull.RefusedError
	switch {
	case ctx.Err() != nil:
		e.err, e.hint = errors.New("interrupted"), "run it again to go on where it stopped"
	case errors.As(err, &refused):
		switch refused.Status {
		case http.StatusNotFound:
			e.code = exitNotFound
		case http.StatusUnauthorized, http.StatusForbidden:
			e.code = exitNotAllowed
		}
	case errors.Is(err, pull.ErrNotFound):
		e.code, e.hint = exitNotFound, "check the name; a private or gated model needs HF_TOKEN"
	case errors.Is(err, pull.ErrNotAllowed):
		e.code, e.hint = exitNotAllowed, "set HF_TOKEN to a key that may read the model"
	case errors.Is(err, pull.ErrUnreachable):
		e.code, e.hint = exitUnreachable, "check the network, or name a mirror with --from URL"
	}
	return e
}
